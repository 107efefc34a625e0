//! What a GPU can refuse or fail at, beside what the contract's own [`thalweg_backend::Error`] says.
//!
//! Owns the device's errors and their way into the contract's.

use std::sync::Arc;

/// Result with the GPU's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no device, or what it failed at.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No adapter, or none that was asked for.
    #[error("{}", no_adapter(.wanted.as_deref(), .found))]
    NoAdapter {
        /// The index or part of a name that was asked for.
        wanted: Option<String>,
        /// Names of the adapters that there are.
        found: Vec<String>,
    },
    /// The adapter refused to open a device.
    #[error("cannot open a device on {adapter}")]
    Open {
        /// The adapter.
        adapter: String,
        /// The reason.
        #[source]
        source: wgpu::RequestDeviceError,
    },
    /// A limit of the adapter is below what the kernels need.
    #[error("{adapter} allows {found} {what}, {needed} needed")]
    Limit {
        /// The adapter.
        adapter: String,
        /// Which limit.
        what: &'static str,
        /// What the adapter allows.
        found: u64,
        /// What the kernels need.
        needed: u64,
    },
    /// Sizes of kernels that cannot be.
    #[error("kernels cannot have these sizes: {fault}")]
    Tuning {
        /// What is wrong with them.
        fault: &'static str,
    },
    /// Something was asked for that the device does not have, or that options told it not to use.
    #[error("{adapter} is used without {what}")]
    Feature {
        /// The adapter.
        adapter: String,
        /// What it would need.
        what: &'static str,
    },
    /// The device has gone: unplugged, reset by its driver, or destroyed.
    #[error("the device was lost ({reason}): {message}")]
    Lost {
        /// The kind of loss.
        reason: &'static str,
        /// The driver's words.
        message: String,
    },
    /// The driver reported an error.
    #[error("the device reported an error")]
    Driver {
        /// The error.
        #[source]
        source: Arc<wgpu::Error>,
    },
    /// Results could not be brought to the host.
    #[error("cannot read results back")]
    Map {
        /// The reason.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl From<Error> for thalweg_backend::Error {
    fn from(source: Error) -> Self {
        Self::Device {
            backend: crate::NAME,
            source: Box::new(source),
        }
    }
}

fn no_adapter(wanted: Option<&str>, found: &[String]) -> String {
    let found = match found {
        [] => "there is none; a Vulkan driver, Metal or DX12 is needed".to_owned(),
        some => format!("there are: {}", some.join(", ")),
    };
    match wanted {
        None => format!("no GPU adapter: {found}"),
        Some(wanted) => format!("no GPU adapter is called {wanted:?}: {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_adapter_is_told_with_those_that_exist() {
        let found = vec!["0 Alpha (Vulkan)".to_owned(), "1 Beta (Vulkan)".to_owned()];
        let wanted = Some("gamma".to_owned());
        assert_eq!(
            Error::NoAdapter { wanted, found }.to_string(),
            "no GPU adapter is called \"gamma\": there are: 0 Alpha (Vulkan), 1 Beta (Vulkan)"
        );
        let (wanted, found) = (None, vec![]);
        assert_eq!(
            Error::NoAdapter { wanted, found }.to_string(),
            "no GPU adapter: there is none; a Vulkan driver, Metal or DX12 is needed"
        );
    }
}
