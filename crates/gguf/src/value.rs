//! Metadata values. Owns: the value types and their numbers, values, arrays. Does not own: keys and
//! conversion (`metadata`), bytes (`read`, `write`).
//! Memory: arrays in their stored width.
//!
//! Invariants: 1. an array's elements are all of one type. 2. Arrays hold no arrays.
//! Cost: none beyond that of the vectors.

use std::fmt;

/// The types of GGUF metadata values, by their number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it all")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    /// The type with this number, if there is one.
    #[must_use]
    pub const fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The number in the file.
    #[must_use]
    pub const fn id(self) -> u32 {
        self as u32
    }

    pub(crate) const fn is_integer(self) -> bool {
        use self::ValueType::{I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
    }

    /// The fewest bytes that a value of this type takes: its size, or the length field of a string
    /// or array.
    pub(crate) const fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// One metadata value in its stored type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of metadata values, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it all")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The stored type.
    #[must_use]
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }
}

/// Runs `$body` with `$items` bound to the vector inside an [`Array`], whatever its type.
macro_rules! with_items {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::String($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Array {
    /// Type of the elements.
    #[must_use]
    pub const fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        with_items!(self, items => items.len())
    }

    /// One element as a value of its own; `None` beyond the last.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Value> {
        with_items!(self, items => items.get(index).cloned().map(Value::from))
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Shows a value as text; arrays as `[1, 2, 3]`, strings in quotes.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => fmt::Debug::fmt(v, f),
            Self::Array(v) => with_items!(v, items => f.debug_list().entries(items).finish()),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

macro_rules! conversions {
    ($($rust:ty => $variant:ident)*) => {$(
        impl From<$rust> for Value {
            fn from(value: $rust) -> Self {
                Self::$variant(value)
            }
        }
        impl From<Vec<$rust>> for Value {
            fn from(values: Vec<$rust>) -> Self {
                Self::Array(Array::$variant(values))
            }
        }
    )*};
}

conversions! {
    u8 => U8
    i8 => I8
    u16 => U16
    i16 => I16
    u32 => U32
    i32 => I32
    f32 => F32
    bool => Bool
    String => String
    u64 => U64
    i64 => I64
    f64 => F64
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}
