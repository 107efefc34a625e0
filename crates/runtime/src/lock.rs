//! Keeps the process's memory where it is.
//!
//! Owns one call to the system and the limit that it is subject to. Memory: makes what has been
//! allocated so far resident, the whole arena included. Cost: touches every page once.

use crate::Note;

/// Locks everything that the process has now; what it takes later is not locked.
///
/// # Platform
/// Linux. Elsewhere the note says that it is not supported.
#[cfg(target_os = "linux")]
pub(crate) fn lock_all() -> Option<Note> {
    use rustix::mm::{MlockAllFlags, mlockall};
    use rustix::process::{Resource, getrlimit};

    let error = mlockall(MlockAllFlags::CURRENT).err()?;
    Some(Note::NotLocked {
        reason: std::io::Error::from(error).to_string(),
        limit_bytes: getrlimit(Resource::Memlock).current,
    })
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn lock_all() -> Option<Note> {
    Some(Note::NotLocked {
        reason: "not supported on this system".to_owned(),
        limit_bytes: None,
    })
}
