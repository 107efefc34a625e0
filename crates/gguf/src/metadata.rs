//! The metadata table. Owns: unique keys in insertion order, typed access. Does not own: values
//! (`value`), bytes (`read`, `write`), or which keys a model needs.
//! Memory: every value of the header, and each key twice.
//!
//! Invariants: 1. keys are unique and not empty. 2. A typed accessor converts from the stored
//! width element by element, or refuses; it never reinterprets.
//! Cost: a lookup is one hash; number arrays are copied, string arrays are borrowed.

use std::collections::HashMap;
use std::fmt;

use crate::error::Error;
use crate::value::{Array, Value, ValueType};

/// A file's metadata: values by unique key, in the order of the file.
///
/// Typed accessors accept every stored integer width, because producers disagree about it, and
/// check each element's range. `opt_*` accessors return `Ok(None)` for an absent key, but an
/// error for one of the wrong type: a mistyped value is never taken for a default.
///
/// ```
/// use thalweg_gguf::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tokenizer.ggml.token_type", vec![1_u8, 3, 255])?;
/// assert_eq!(metadata.i32_array("tokenizer.ggml.token_type")?, [1, 3, 255]);
/// assert_eq!(metadata.opt_u32("absent")?, None);
/// assert_eq!(
///     metadata.u32("tokenizer.ggml.token_type").unwrap_err().to_string(),
///     "metadata key `tokenizer.ggml.token_type` is of type array of u8, expected a u32 integer",
/// );
/// # Ok::<(), thalweg_gguf::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key in its stored type.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Keys and values in the order of insertion.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Appends a new key.
    ///
    /// # Errors
    /// [`Error::EmptyKey`], or [`Error::DuplicateKey`] if the key is there already.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), Error> {
        let key = key.into();
        if self.index.contains_key(&key) {
            return Err(Error::DuplicateKey { key });
        }
        self.set(key, value)
    }

    /// Replaces the value of a key in place, or appends a new key.
    ///
    /// # Errors
    /// [`Error::EmptyKey`].
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<(), Error> {
        let (key, value) = (key.into(), value.into());
        let index = self.entries.len();
        if key.is_empty() {
            return Err(Error::EmptyKey { index });
        }
        if let Some(&i) = self.index.get(&key) {
            self.entries[i].1 = value;
        } else {
            self.index.insert(key.clone(), index);
            self.entries.push((key, value));
        }
        Ok(())
    }

    /// Removes a key and returns its value. The order of the others stays.
    ///
    /// # Cost
    /// Linear in the number of keys.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for i in self.index.values_mut().filter(|i| **i > at) {
            *i -= 1;
        }
        Some(self.entries.remove(at).1)
    }

    pub(crate) fn into_entries(self) -> Vec<(String, Value)> {
        self.entries
    }

    /// The value of a string key.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn str(&self, key: &str) -> Result<&str, Error> {
        required(key, "a string", self.opt_str(key)?)
    }

    /// As [`str`](Self::str), with `None` for an absent key.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn opt_str(&self, key: &str) -> Result<Option<&str>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(key, "a string", other)),
        }
    }

    /// The strings of an array.
    ///
    /// # Errors
    /// [`Error::MissingKey`], [`Error::WrongType`].
    pub fn str_array(&self, key: &str) -> Result<&[String], Error> {
        required(key, "an array of strings", self.opt_str_array(key)?)
    }

    /// As [`str_array`](Self::str_array), with `None` for an absent key.
    ///
    /// # Errors
    /// [`Error::WrongType`].
    pub fn opt_str_array(&self, key: &str) -> Result<Option<&[String]>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::String(items))) => Ok(Some(items)),
            Some(other) => Err(wrong_type(key, "an array of strings", other)),
        }
    }

    fn number<T: Number>(&self, key: &str) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        if !T::accepts(value.value_type()) {
            return Err(wrong_type(key, T::EXPECTED, value));
        }
        match value {
            Value::U8(v) => convert(key, None, *v).map(Some),
            Value::I8(v) => convert(key, None, *v).map(Some),
            Value::U16(v) => convert(key, None, *v).map(Some),
            Value::I16(v) => convert(key, None, *v).map(Some),
            Value::U32(v) => convert(key, None, *v).map(Some),
            Value::I32(v) => convert(key, None, *v).map(Some),
            Value::U64(v) => convert(key, None, *v).map(Some),
            Value::I64(v) => convert(key, None, *v).map(Some),
            Value::F32(v) => convert(key, None, *v).map(Some),
            Value::F64(v) => convert(key, None, *v).map(Some),
            Value::Bool(v) => convert(key, None, *v).map(Some),
            other => Err(wrong_type(key, T::EXPECTED, other)),
        }
    }

    fn numbers<T: Number>(&self, key: &str) -> Result<Option<Vec<T>>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let Value::Array(array) = value else {
            return Err(wrong_type(key, T::EXPECTED_ARRAY, value));
        };
        if !T::accepts(array.element_type()) {
            return Err(wrong_type(key, T::EXPECTED_ARRAY, value));
        }
        match array {
            Array::U8(v) => convert_all(key, v),
            Array::I8(v) => convert_all(key, v),
            Array::U16(v) => convert_all(key, v),
            Array::I16(v) => convert_all(key, v),
            Array::U32(v) => convert_all(key, v),
            Array::I32(v) => convert_all(key, v),
            Array::U64(v) => convert_all(key, v),
            Array::I64(v) => convert_all(key, v),
            Array::F32(v) => convert_all(key, v),
            Array::F64(v) => convert_all(key, v),
            Array::Bool(v) => convert_all(key, v),
            _ => Err(wrong_type(key, T::EXPECTED_ARRAY, value)),
        }
    }
}

/// Declares the required and the optional accessor of a number and of an array of numbers.
macro_rules! accessors {
    ($($ty:ty, $from:literal: $one:ident $opt:ident $many:ident $opt_many:ident)*) => {
        impl Metadata {$(
            #[doc = concat!("The value of a key as `", stringify!($ty), "`, from ", $from, ".")]
            ///
            /// # Errors
            /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::OutOfRange`].
            pub fn $one(&self, key: &str) -> Result<$ty, Error> {
                required(key, <$ty>::EXPECTED, self.$opt(key)?)
            }

            #[doc = concat!("As [`", stringify!($one), "`](Self::", stringify!($one),
                "), with `None` for an absent key.")]
            ///
            /// # Errors
            /// [`Error::WrongType`], [`Error::OutOfRange`].
            pub fn $opt(&self, key: &str) -> Result<Option<$ty>, Error> {
                self.number(key)
            }

            #[doc = concat!("The elements of an array as `", stringify!($ty), "`, from ", $from,
                ".")]
            ///
            /// # Errors
            /// [`Error::MissingKey`], [`Error::WrongType`], [`Error::OutOfRange`] with the index.
            pub fn $many(&self, key: &str) -> Result<Vec<$ty>, Error> {
                required(key, <$ty>::EXPECTED_ARRAY, self.$opt_many(key)?)
            }

            #[doc = concat!("As [`", stringify!($many), "`](Self::", stringify!($many),
                "), with `None` for an absent key.")]
            ///
            /// # Errors
            /// [`Error::WrongType`], [`Error::OutOfRange`].
            pub fn $opt_many(&self, key: &str) -> Result<Option<Vec<$ty>>, Error> {
                self.numbers(key)
            }
        )*}
    };
}

accessors! {
    u32, "any integer type": u32 opt_u32 u32_array opt_u32_array
    i32, "any integer type": i32 opt_i32 i32_array opt_i32_array
    u64, "any integer type": u64 opt_u64 u64_array opt_u64_array
    i64, "any integer type": i64 opt_i64 i64_array opt_i64_array
    f32, "`f32`, or `f64` rounded": f32 opt_f32 f32_array opt_f32_array
    bool, "`bool`, or an integer of 0 or 1": bool opt_bool bool_array opt_bool_array
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Two tables are equal if they hold equal values under equal keys in the same order.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// A stored number, widened without loss.
enum Stored {
    Integer(i128),
    Float(f64),
    Bool(bool),
}

macro_rules! stored {
    ($variant:ident($wide:ty): $($narrow:ty)*) => {$(
        impl From<$narrow> for Stored {
            fn from(value: $narrow) -> Self {
                Self::$variant(<$wide>::from(value))
            }
        }
    )*};
}

stored!(Integer(i128): u8 i8 u16 i16 u32 i32 u64 i64);
stored!(Float(f64): f32 f64);
stored!(Bool(bool): bool);

/// A type that the typed accessors return.
trait Number: Sized {
    const EXPECTED: &'static str;
    const EXPECTED_ARRAY: &'static str;

    /// Whether values of this stored type are converted at all.
    fn accepts(stored: ValueType) -> bool;

    /// `None` if out of range.
    fn convert(stored: Stored) -> Option<Self>;
}

macro_rules! integers {
    ($($ty:ident)*) => {$(
        impl Number for $ty {
            const EXPECTED: &'static str = concat!("a ", stringify!($ty), " integer");
            const EXPECTED_ARRAY: &'static str =
                concat!("an array of ", stringify!($ty), " integers");

            fn accepts(stored: ValueType) -> bool {
                stored.is_integer()
            }

            fn convert(stored: Stored) -> Option<Self> {
                match stored {
                    Stored::Integer(v) => Self::try_from(v).ok(),
                    Stored::Float(_) | Stored::Bool(_) => None,
                }
            }
        }
    )*};
}

integers!(u32 i32 u64 i64);

impl Number for f32 {
    const EXPECTED: &'static str = "a float within f32";
    const EXPECTED_ARRAY: &'static str = "an array of floats";

    fn accepts(stored: ValueType) -> bool {
        matches!(stored, ValueType::F32 | ValueType::F64)
    }

    fn convert(stored: Stored) -> Option<Self> {
        match stored {
            // Rounds to nearest; a finite number that becomes infinite is out of range.
            Stored::Float(v) => Some(v as Self).filter(|n| n.is_finite() || !v.is_finite()),
            Stored::Integer(_) | Stored::Bool(_) => None,
        }
    }
}

impl Number for bool {
    const EXPECTED: &'static str = "a boolean";
    const EXPECTED_ARRAY: &'static str = "an array of booleans";

    fn accepts(stored: ValueType) -> bool {
        stored == ValueType::Bool || stored.is_integer()
    }

    fn convert(stored: Stored) -> Option<Self> {
        match stored {
            Stored::Bool(v) => Some(v),
            Stored::Integer(0) => Some(false),
            Stored::Integer(1) => Some(true),
            Stored::Integer(_) | Stored::Float(_) => None,
        }
    }
}

fn convert<T: Number, S: Copy + fmt::Display + Into<Stored>>(
    key: &str,
    index: Option<usize>,
    stored: S,
) -> Result<T, Error> {
    T::convert(stored.into()).ok_or_else(|| Error::OutOfRange {
        key: key.to_owned(),
        index,
        expected: T::EXPECTED,
        found: stored.to_string(),
    })
}

fn convert_all<T: Number, S: Copy + fmt::Display + Into<Stored>>(
    key: &str,
    items: &[S],
) -> Result<Option<Vec<T>>, Error> {
    let items = items.iter().enumerate();
    items
        .map(|(i, &stored)| convert(key, Some(i), stored))
        .collect::<Result<_, _>>()
        .map(Some)
}

fn required<T>(key: &str, expected: &'static str, found: Option<T>) -> Result<T, Error> {
    found.ok_or_else(|| Error::MissingKey {
        key: key.to_owned(),
        expected,
    })
}

fn wrong_type(key: &str, expected: &'static str, value: &Value) -> Error {
    let found = match value {
        Value::Array(array) => format!("array of {}", array.element_type()),
        other => other.value_type().to_string(),
    };
    Error::WrongType {
        key: key.to_owned(),
        expected,
        found,
    }
}
