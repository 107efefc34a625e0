#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod arena;
mod block_cache;
mod buf;
pub mod bundle;
mod error;
mod experts;
mod files;
pub mod io;
mod layout;
pub mod probe;
mod profile;
mod rows;
mod unfinished;

pub use arena::{Arena, Region, SizeClass};
pub use buf::{ALIGNMENT_BYTES, AlignedBuf, SlotBuf};
pub use bundle::{BundleFault, BundleFile};
pub use error::{Change, CheckError, Error, Extent, Result};
pub use experts::{
    ContentCheck, ExpertAccess, ExpertStore, ExpertStoreConfig, LayerStats, Lease, StoreStats,
    Stream, WarmFill,
};
pub use files::FileSet;
pub use io::{
    DirectFile, PreadBackend, Priority, ReadAt, ReadBackend, ReadDone, ReadMode, ReadOp, Segment,
};
pub use layout::{ExpertLayout, ExpertPartLayout, PART_ALIGNMENT_BYTES};
pub use profile::{Coverage, Covered, PROFILE_MAGIC, Profile, ProfileFault};
pub use rows::{RowStats, RowTable};
pub use unfinished::Unfinished;
