// SPDX-License-Identifier: Apache-2.0
//! Macros that declare structs and handles.

/// Declares opaque handles. They are neither `Send` nor `Sync` nor `Unpin`.
macro_rules! handles {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
            marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
        }
    )* };
}

/// Declares structs with the layout of C. A struct has its size in C, a member the range of its bytes in C:
/// `check_layouts` compares them with Rust's. All structs are plain data: `zeroed()` is a valid value of each, and means "default".
macro_rules! structs {
    ($(#[doc = $about:literal] pub struct $name:ident: $bytes:literal { $($start:literal..$end:literal: $field:ident: $type:ty,)* })*) => {
        $(
            #[doc = $about]
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name {
                $(pub $field: $type,)*
            }

            impl $name {
                /// All zero, with `size` set if the struct has one, as `feedlane_init` sets it.
                pub fn new() -> Self {
                    // SAFETY: members are integers, arrays of integers, raw pointers and Option<fn>. Zero is a valid
                    // value of each.
                    let mut made: Self = unsafe { std::mem::zeroed() };
                    if [$(stringify!($field)),*][0] == "size" {
                        // SAFETY: by repr(C) the first member, a usize, begins where the struct begins.
                        unsafe { (&mut made as *mut Self).cast::<usize>().write(std::mem::size_of::<Self>()) };
                    }
                    made
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new()
                }
            }
        )*

        #[cfg(test)]
        pub(crate) fn check_layouts() {
            $(
                assert_eq!(std::mem::size_of::<$name>(), $bytes, stringify!($name));
                let made = $name::new();
                $(
                    let start = std::ptr::addr_of!(made.$field) as usize - std::ptr::addr_of!(made) as usize;
                    let range = start..start + std::mem::size_of::<$type>();
                    assert_eq!(range, $start..$end, "{}.{}", stringify!($name), stringify!($field));
                )*
            )*
        }
    };
}
