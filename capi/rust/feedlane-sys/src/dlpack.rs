// SPDX-License-Identifier: Apache-2.0
//! The structs of DLPack 1.0 and of the form before it. `feedlane.h` only declares their names. See
//! <https://dmlc.github.io/dlpack>.
use std::ffi::c_void;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// 1: the CPU; 3: CPU memory registered with CUDA.
    pub device_type: i32,
    pub device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: i32,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    /// In elements.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// The form before DLPack 1.0, for capsules named "dltensor".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensor {
    pub dl_tensor: DLTensor,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(this: *mut DLManagedTensor)>,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    pub major: u32,
    pub minor: u32,
}

/// The form of DLPack 1.0, for capsules named "dltensor_versioned".
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLManagedTensorVersioned {
    pub version: DLPackVersion,
    pub manager_ctx: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(this: *mut DLManagedTensorVersioned)>,
    pub flags: u64,
    pub dl_tensor: DLTensor,
}

#[test]
fn dlpack_is_laid_out_as_its_documentation_says() {
    use std::mem::size_of;
    assert_eq!((size_of::<DLDevice>(), size_of::<DLDataType>(), size_of::<DLPackVersion>()), (8, 4, 8));
    assert_eq!((size_of::<DLTensor>(), size_of::<DLManagedTensor>()), (48, 64));
    assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
    let place = std::mem::MaybeUninit::<DLManagedTensorVersioned>::uninit();
    let start = place.as_ptr();
    // SAFETY: addresses of members only; nothing is read.
    let ends = unsafe {
        [
            std::ptr::addr_of!((*start).deleter) as usize,
            std::ptr::addr_of!((*start).flags) as usize,
            std::ptr::addr_of!((*start).dl_tensor.shape) as usize,
            std::ptr::addr_of!((*start).dl_tensor.byte_offset) as usize,
        ]
    };
    assert_eq!(ends.map(|end| end - start as usize), [16, 24, 56, 72]);
}
