// SPDX-License-Identifier: Apache-2.0
//! Macros that declare structs and handles, so that a test can compare every member with C.

/// Declares an opaque handle. It is neither `Send` nor `Sync` nor `Unpin`.
macro_rules! handles {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            opaque: [u8; 0],
            marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
        }
    )* };
}

/// One member of a struct as the compiler has laid it out, for the test that compares it with C.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub name: &'static str,
    pub kind: &'static str,
    pub offset: usize,
    pub size: usize,
}

/// Called with a struct's name, its size, and a function that visits its members.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&'static str, usize, fn(&mut dyn FnMut(Member)));

/// Declares structs with the layout of C. All of them are plain data: `zeroed()` is a valid value of each, and means
/// "default".
macro_rules! structs {
    ($($(#[$about:meta])* pub struct $name:ident { $(pub $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$about])*
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
                        // SAFETY: by repr(C) the first member, a usize by the layout test, begins where the struct
                        // begins.
                        unsafe { (&mut made as *mut Self).cast::<usize>().write(std::mem::size_of::<Self>()) };
                    }
                    made
                }

                #[doc(hidden)]
                pub fn members(visit: &mut dyn FnMut(Member)) {
                    let place = std::mem::MaybeUninit::<Self>::uninit();
                    let start = place.as_ptr();
                    $(
                        // SAFETY: takes the address of a member of existing memory; nothing is read.
                        let at = unsafe { std::ptr::addr_of!((*start).$field) };
                        visit(Member {
                            name: stringify!($field),
                            kind: std::any::type_name::<$type>(),
                            offset: at as usize - start as usize,
                            size: std::mem::size_of::<$type>(),
                        });
                    )*
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::new()
                }
            }
        )*

        /// Visits every struct of this module: its name, its size and its members.
        pub(crate) fn layouts(visit: crate::layout::Visit<'_>) {
            $(visit(stringify!($name), std::mem::size_of::<$name>(), $name::members);)*
        }
    };
}
