// SPDX-License-Identifier: Apache-2.0
//! The types of a tensor's elements.
use std::fmt;

use crate::sys;

/// An element's type in DLPack's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dtype {
    /// 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool.
    pub code: u8,
    /// Bits of each lane.
    pub bits: u8,
    pub lanes: u16,
}

impl Dtype {
    pub const fn new(code: u8, bits: u8) -> Self {
        Dtype { code, bits, lanes: 1 }
    }

    pub(crate) fn from_c(raw: sys::feedlane_dtype) -> Self {
        Dtype { code: raw.code, bits: raw.bits, lanes: raw.lanes.max(1) }
    }

    pub(crate) fn to_c(self) -> sys::feedlane_dtype {
        sys::feedlane_dtype { code: self.code, bits: self.bits, lanes: self.lanes }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.code {
            0 => "int",
            1 => "uint",
            2 => "float",
            4 => "bfloat",
            5 => "complex",
            6 => "bool",
            _ => "code?",
        };
        write!(f, "{}{}", name, self.bits)?;
        if self.lanes > 1 {
            write!(f, "x{}", self.lanes)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A type of elements in tensors.
///
/// # Safety
/// `DTYPE` describes the type. Every bit pattern is a valid value of it, because another process wrote the bits. None
/// of its bytes is padding.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($type:ty: $code:expr, $bits:expr;)*) => { $(
        // SAFETY: code and width are DLPack's for this type. The type has no padding, and every bit pattern is a valid
        // value.
        unsafe impl Element for $type {
            const DTYPE: Dtype = Dtype::new($code, $bits);
        }
    )* };
}

/// A bool of one byte; every value but 0 is true. (Rust's `bool` allows only 0 and 1.)
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bool8(pub u8);

/// The bits of an IEEE half-precision float.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F16(pub u16);

/// The bits of a bfloat16: the upper half of a float's bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bf16(pub u16);

elements! {
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    f32: 2, 32; f64: 2, 64;
    F16: 2, 16; Bf16: 4, 16; Bool8: 6, 8;
}
