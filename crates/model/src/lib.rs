#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod arch;
mod blocks;
mod config;
mod error;
mod ngram;
mod routers;
mod spec;
mod state;
mod weights;
mod workspace;

pub use arch::{Architecture, Outline, bind, outline};
pub use error::{Error, Problem, Result};
pub use ngram::NgramHash;
pub use routers::RouterOptions;
pub use spec::{ExpertPart, ExpertSpec, ModelSpec, RowSpec};
pub use state::{AttentionState, LayerState, RecurrentState, SequenceState, Staging};
pub use workspace::{Workspace, WorkspaceShape};
