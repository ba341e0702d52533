// SPDX-License-Identifier: Apache-2.0
//! The fields of a sample.
use std::ffi::{CStr, CString};

use crate::args::c_string;
use crate::element::{Dtype, Element};
use crate::error::{Error, Status};
use crate::sys;

/// One field of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    name: String,
    dtype: Dtype,
    shape: Vec<i64>,
}

impl Field {
    /// `shape` does not include the batch dimension; `&[]` declares a scalar.
    pub fn new<T: Element>(name: &str, shape: &[i64]) -> Self {
        Field::of(name, T::DTYPE, shape)
    }

    /// A field with a dtype that has no type in this crate.
    pub fn of(name: &str, dtype: Dtype, shape: &[i64]) -> Self {
        Field { name: name.into(), dtype, shape: shape.into() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// `name` must live as long as the result is used.
    pub(crate) fn to_c(&self, name: &CStr) -> Result<sys::feedlane_field, Error> {
        let mut raw = sys::feedlane_field::new();
        let (found, needed) = (self.shape.len(), raw.shape.len());
        if found > needed {
            let text = format!("{:?} has {} dimensions, but at most {} are allowed", self.name, found, needed);
            return Err(Error::new(Status::ARGUMENT, "field.ndim", found as i64, needed as i64, text));
        }
        raw.name = name.as_ptr();
        raw.dtype = self.dtype.to_c();
        raw.ndim = found as i32;
        raw.shape[..found].copy_from_slice(&self.shape);
        Ok(raw)
    }
}

/// Fields for C. They point to the names, which must live as long as they are used.
pub(crate) fn c_fields(fields: &[Field]) -> Result<(Vec<CString>, Vec<sys::feedlane_field>), Error> {
    let names = fields.iter().map(|field| c_string("field.name", field.name())).collect::<Result<Vec<_>, _>>()?;
    let raw = fields.iter().zip(&names).map(|(field, name)| field.to_c(name)).collect::<Result<Vec<_>, _>>()?;
    Ok((names, raw))
}
