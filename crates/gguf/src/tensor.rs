//! Tensor types and the directory's entries. Owns: the table of ggml types (id, name, block length
//! and size), shape arithmetic. Does not own: what a block's bytes mean (`thalweg-quant` does).
//! Memory: a name per tensor; nothing of the data.
//!
//! Invariants: 1. a [`TensorType`] is always one that a file may hold or that ggml still knows.
//! 2. All products are checked and stay below 2^63. 3. `ne` beyond `n_dims` is 1.
//! Cost: constant time throughout.

use std::fmt;

use crate::error::Error;

/// The longest tensor name accepted: ggml keeps names in 64 bytes, one of them the final zero.
pub const MAX_NAME_BYTES: u64 = 63;

/// A tensor's element type: the ggml type id, known to be a live one.
///
/// ```
/// use thalweg_gguf::TensorType;
///
/// let ty = TensorType::from_id(42)?;
/// assert_eq!((ty.name(), ty.block_len(), ty.block_bytes()), ("Q2_0", 64, 18));
/// assert_eq!(ty.row_bytes(2560), Some(720));
/// assert_eq!(ty.row_bytes(100), None);
/// # Ok::<(), thalweg_gguf::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType(u32);

struct Layout {
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
}

macro_rules! tensor_types {
    ($($id:literal $name:ident $block_len:literal $block_bytes:literal)*) => {
        impl TensorType {
            $(
                #[doc = concat!(
                    "`", stringify!($name), "`: blocks of ", stringify!($block_len),
                    " elements in ", stringify!($block_bytes), " bytes."
                )]
                pub const $name: Self = Self($id);
            )*

            /// Every live type, by rising id.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            const fn layout(self) -> Option<Layout> {
                match self.0 {
                    $($id => Some(Layout {
                        name: stringify!($name),
                        block_len: $block_len,
                        block_bytes: $block_bytes,
                    }),)*
                    _ => None,
                }
            }
        }
    };
}

// id, name, elements and bytes of a block: `type_traits` in llama.cpp, ggml.c.
tensor_types! {
    0  F32      1   4
    1  F16      1   2
    2  Q4_0     32  18
    3  Q4_1     32  20
    6  Q5_0     32  22
    7  Q5_1     32  24
    8  Q8_0     32  34
    9  Q8_1     32  36
    10 Q2_K     256 84
    11 Q3_K     256 110
    12 Q4_K     256 144
    13 Q5_K     256 176
    14 Q6_K     256 210
    15 Q8_K     256 292
    16 IQ2_XXS  256 66
    17 IQ2_XS   256 74
    18 IQ3_XXS  256 98
    19 IQ1_S    256 50
    20 IQ4_NL   32  18
    21 IQ3_S    256 110
    22 IQ2_S    256 82
    23 IQ4_XS   256 136
    24 I8       1   1
    25 I16      1   2
    26 I32      1   4
    27 I64      1   8
    28 F64      1   8
    29 IQ1_M    256 56
    30 BF16     1   2
    34 TQ1_0    256 54
    35 TQ2_0    256 66
    39 MXFP4    32  17
    40 NVFP4    64  36
    41 Q1_0     128 18
    42 Q2_0     64  18
}

/// Ids that ggml gave out and took back: the repacked Q4_0 and IQ4_NL layouts, Q4_2 and Q4_3.
const REMOVED: [u32; 8] = [4, 5, 31, 32, 33, 36, 37, 38];

impl TensorType {
    /// The type with this ggml id.
    ///
    /// # Errors
    /// [`Error::RemovedTensorType`] for ids that ggml has dropped, [`Error::UnknownTensorType`]
    /// for ids it never had: no id is ever taken for another.
    pub const fn from_id(id: u32) -> Result<Self, Error> {
        if Self(id).layout().is_some() {
            return Ok(Self(id));
        }
        let mut i = 0;
        while i < REMOVED.len() {
            if REMOVED[i] == id {
                return Err(Error::RemovedTensorType { id });
            }
            i += 1;
        }
        Err(Error::UnknownTensorType { id })
    }

    /// The type with this name, as [`name`](Self::name) spells it; case does not matter.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|ty| ty.name().eq_ignore_ascii_case(name))
    }

    /// The ggml type id.
    #[must_use]
    pub const fn id(self) -> u32 {
        self.0
    }

    /// The name, in capitals: `Q2_0`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.known().name
    }

    /// Elements of one block; 1 for plain numbers.
    #[must_use]
    pub const fn block_len(self) -> u64 {
        self.known().block_len
    }

    /// Bytes of one block.
    #[must_use]
    pub const fn block_bytes(self) -> u64 {
        self.known().block_bytes
    }

    /// Bytes of a row of `ne0` elements; `None` if `ne0` is no whole number of blocks, or the
    /// product exceeds `u64`.
    #[must_use]
    pub const fn row_bytes(self, ne0: u64) -> Option<u64> {
        let Layout {
            block_len,
            block_bytes,
            ..
        } = self.known();
        if !ne0.is_multiple_of(block_len) {
            return None;
        }
        (ne0 / block_len).checked_mul(block_bytes)
    }

    const fn known(self) -> Layout {
        self.layout()
            .expect("from_id and the constants are the only constructors")
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One entry of the tensor directory: what a tensor is and where its bytes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name, 1 to 63 bytes, unique in the model.
    pub name: String,
    /// Elements along each dimension, the contiguous one first; 1 beyond `n_dims`.
    pub ne: [u64; 4],
    /// Number of dimensions that the file gives, 1 to 4.
    pub n_dims: usize,
    /// Element type.
    pub ty: TensorType,
    /// Index of the shard that holds the data; 0 in a single file.
    pub file: usize,
    /// Where the data starts, from the start of that shard's file.
    pub offset_bytes: u64,
    /// Size of the data.
    pub size_bytes: u64,
}

impl TensorInfo {
    /// The dimensions that the file gives, the contiguous one first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        self.ne.get(..self.n_dims).unwrap_or(&self.ne)
    }

    /// Number of elements.
    #[must_use]
    pub fn n_elements(&self) -> u64 {
        self.ne.iter().product()
    }

    /// Number of rows: the product of all dimensions but the first.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.ne[1..].iter().product()
    }

    /// Bytes of one row of `ne[0]` elements.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.size_bytes / self.n_rows()
    }

    /// The first byte after the data, from the start of the shard's file.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.size_bytes
    }
}

/// What a tensor is, without a place: what a writer is told before the data comes.
///
/// ```
/// use thalweg_gguf::{TensorSpec, TensorType};
///
/// let spec = TensorSpec::new("blk.0.ffn_up_exps.weight", TensorType::Q2_0, &[128, 64, 16])?;
/// assert_eq!(spec.size_bytes(), 128 / 64 * 18 * 64 * 16);
/// assert!(TensorSpec::new("odd", TensorType::Q2_0, &[100]).is_err());
/// # Ok::<(), thalweg_gguf::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    name: String,
    ty: TensorType,
    ne: [u64; 4],
    n_dims: usize,
    size_bytes: u64,
}

impl TensorSpec {
    /// A tensor of `shape` elements, the contiguous dimension first.
    ///
    /// # Errors
    /// [`Error::InTensor`] if the name is empty or too long, or the shape has not 1 to 4
    /// dimensions, a zero dimension, a row of broken blocks, or 2^63 bytes or elements.
    pub fn new(name: impl Into<String>, ty: TensorType, shape: &[u64]) -> Result<Self, Error> {
        let name = name.into();
        let found_bytes = length(&name);
        if found_bytes == 0 || found_bytes > MAX_NAME_BYTES {
            let limit_bytes = MAX_NAME_BYTES;
            let problem = Error::TensorNameLength {
                index: 0,
                found_bytes,
                limit_bytes,
            };
            return Err(problem.in_tensor(&name));
        }
        let size_bytes = check_shape(ty, shape).map_err(|e| e.in_tensor(&name))?;
        let mut ne = [1; 4];
        ne[..shape.len()].copy_from_slice(shape);
        Ok(Self {
            name,
            ty,
            ne,
            n_dims: shape.len(),
            size_bytes,
        })
    }

    /// A tensor like this one: the same name, type and shape.
    ///
    /// # Errors
    /// As [`new`](Self::new); never for a [`TensorInfo`] as this crate returned it.
    pub fn like(info: &TensorInfo) -> Result<Self, Error> {
        Self::new(info.name.as_str(), info.ty, info.shape())
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Element type.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Bytes of the data.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The dimensions given, the contiguous one first.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.ne[..self.n_dims]
    }

    /// The directory entry, once a place in the file is known.
    pub(crate) fn place(self, offset_bytes: u64) -> TensorInfo {
        let Self {
            name,
            ty,
            ne,
            n_dims,
            size_bytes,
        } = self;
        TensorInfo {
            name,
            ne,
            n_dims,
            ty,
            file: 0,
            offset_bytes,
            size_bytes,
        }
    }
}

/// Checks a shape and returns the bytes it takes. llama.cpp counts in `i64`, hence 2^63.
fn check_shape(ty: TensorType, shape: &[u64]) -> Result<u64, Error> {
    let found = u64::try_from(shape.len()).unwrap_or(u64::MAX);
    let ne0 = match shape {
        [ne0, ..] if found <= 4 => *ne0,
        _ => return Err(Error::DimensionCount { found }),
    };
    if let Some(index) = shape.iter().position(|&n| n == 0) {
        return Err(Error::ZeroDimension { index });
    }
    let product = |first: u64, rest: &[u64]| {
        rest.iter()
            .try_fold(first, |all, &n| all.checked_mul(n))
            .filter(|&all| i64::try_from(all).is_ok())
            .ok_or_else(|| Error::ShapeTooLarge { ne: shape.to_vec() })
    };
    product(ne0, &shape[1..])?;
    if !ne0.is_multiple_of(ty.block_len()) {
        return Err(Error::PartialBlock {
            ty: ty.name(),
            ne0,
            block_len: ty.block_len(),
        });
    }
    let row_bytes = ty
        .row_bytes(ne0)
        .ok_or_else(|| Error::ShapeTooLarge { ne: shape.to_vec() })?;
    product(row_bytes, &shape[1..])
}

/// Length of a string as a count in a file.
pub(crate) fn length(text: &str) -> u64 {
    u64::try_from(text.len()).expect("a length in memory fits u64")
}
