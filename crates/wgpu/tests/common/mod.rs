//! The device that the tests run on.

use thalweg_wgpu::{Error, WgpuBackend, WgpuOptions};

/// The device, or `None` aloud.
pub(crate) fn device(options: &WgpuOptions) -> Option<WgpuBackend> {
    match WgpuBackend::new(options) {
        Ok(backend) => Some(backend),
        Err(Error::NoAdapter { .. }) if std::env::var_os("THALWEG_GPU_REQUIRED").is_none() => {
            eprintln!("SKIPPED: no GPU adapter, hardware or software, on this machine");
            None
        }
        Err(e) => panic!("{e}"),
    }
}
