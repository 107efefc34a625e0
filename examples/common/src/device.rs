//! The flags that choose what a model runs on.
//!
//! Owns the choice between the CPU and a GPU; not what either computes. Memory: none.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use thalweg::{Activations, CpuBackend};
use thalweg_wgpu::{WgpuBackend, WgpuOptions, adapters};

use crate::args::size;
use crate::{ModelArgs, note};

/// Flags that choose a device.
#[derive(Debug, Clone, Default, Args)]
pub struct DeviceArgs {
    /// What runs the model: cpu, wgpu (a GPU, through Vulkan, Metal or DX12), or auto (a GPU that is
    /// no software driver where there is one). Last bits of logits differ between devices
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    pub backend: BackendKind,

    /// The GPU: its index or a part of its name, as `inspect --gpu` lists them
    #[arg(long, value_name = "ADAPTER")]
    pub adapter: Option<String>,

    /// Memory of the GPU for weights, context, intermediates and copies of experts (7GiB or bytes),
    /// beside --budget, which is the host's; does not change the output [default: what is needed, and
    /// 1 GiB of experts]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub vram: Option<u64>,
}

/// What runs a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum BackendKind {
    /// This machine's processor.
    #[default]
    Cpu,
    /// A GPU.
    Wgpu,
    /// A GPU where there is a real one, else the processor.
    Auto,
}

/// An open device.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "callers match on it")]
pub enum Device {
    /// The processor.
    Cpu(CpuBackend),
    /// A GPU.
    Gpu(WgpuBackend),
}

impl DeviceArgs {
    /// Opens the device that the flags ask for; what the flags of the model say of the processor
    /// holds there alone.
    ///
    /// # Errors
    /// When there is no such adapter or it cannot be opened, for flags that do not go together, and
    /// for a number of threads that cannot be had.
    pub fn open(&self, model: &ModelArgs) -> Result<Device> {
        let is_real = |a: &thalweg_wgpu::AdapterSummary| a.kind != "Cpu";
        let on_gpu = match self.backend {
            BackendKind::Cpu => false,
            BackendKind::Wgpu => true,
            BackendKind::Auto => self.adapter.is_some() || adapters().iter().any(is_real),
        };
        if !on_gpu {
            if self.adapter.is_some() {
                bail!("--adapter needs --backend wgpu or auto");
            }
            match self.backend {
                BackendKind::Auto if self.vram.is_some() => {
                    note("note: --vram has no effect: no GPU was found");
                }
                _ if self.vram.is_some() => bail!("--vram needs --backend wgpu or auto"),
                _ => {}
            }
            return Ok(Device::Cpu(model.backend()?));
        }
        if model.activations != Activations::F32 {
            bail!(
                "--activations {} is of the CPU alone; a GPU computes in f32",
                model.activations.name()
            );
        }
        if model.threads.is_some() {
            note("note: --threads has no effect on a GPU");
        }
        let mut options = WgpuOptions::default();
        options.adapter.clone_from(&self.adapter);
        options.memory_bytes = self.vram;
        match WgpuBackend::new(&options) {
            Ok(backend) => {
                note(&format!("device   {}", backend.adapter()));
                Ok(Device::Gpu(backend))
            }
            Err(e) => Err(anyhow::Error::new(e).context("--backend cpu runs without a GPU")),
        }
    }
}
