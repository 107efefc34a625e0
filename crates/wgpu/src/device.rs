//! Adapters, the choice of one, and the open device with its limits and its failures.
//!
//! Owns the connection to the driver; not what is run on it. Memory: none of its own.
//! Invariants: (1) limits are the adapter's, lowered where options say so; (2) the first failure
//! that no call could return is kept, and every later call on the device returns it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Error, Features, Result, Tuning};

/// Storage buffers that the largest kernel binds.
const STORAGE_BUFFERS: u32 = 8;

/// How to open a device.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WgpuOptions {
    /// The adapter: its index in [`adapters`], or a part of its name in any case. The first one that
    /// is a real GPU, or else the first, if `None`.
    pub adapter: Option<String>,
    /// Most bytes of a storage binding, for tests of small devices; the adapter's own limit holds
    /// too.
    pub max_binding_bytes: u64,
    /// Most bytes of device memory for everything together; `None` limits the copies of experts
    /// alone, to [`DEFAULT_EXPERT_BYTES`](Self::DEFAULT_EXPERT_BYTES).
    pub memory_bytes: Option<u64>,
    /// Most bytes for experts that are uploaded to be used once, and no more than a sixteenth of
    /// `memory_bytes`. At least one must fit.
    pub passing_bytes: u64,
    /// What may be used of what the adapter has; results do not depend on clocks.
    pub features: Features,
    /// Sizes of the kernels of products.
    pub tuning: Tuning,
}

impl WgpuOptions {
    /// Bytes for copies of experts where no limit of memory was given: drivers do not say how much
    /// there is.
    pub const DEFAULT_EXPERT_BYTES: u64 = 1 << 30;
}

impl Default for WgpuOptions {
    fn default() -> Self {
        Self {
            adapter: None,
            max_binding_bytes: u64::MAX,
            memory_bytes: None,
            passing_bytes: 64 << 20,
            features: Features::all(),
            tuning: Tuning::default(),
        }
    }
}

/// An adapter as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdapterSummary {
    /// Index to choose it by.
    pub index: usize,
    /// Name given by the driver.
    pub name: String,
    /// `Vulkan`, `Metal` or `Dx12`.
    pub api: String,
    /// `DiscreteGpu`, `IntegratedGpu`, `VirtualGpu`, `Cpu` or `Other`.
    pub kind: String,
    /// Driver and its version, where known.
    pub driver: String,
    /// Largest buffer.
    pub max_buffer_bytes: u64,
    /// Largest part of a buffer that a kernel sees.
    pub max_binding_bytes: u64,
    /// Fewest and most invocations of a subgroup.
    pub subgroup_sizes: (u32, u32),
    /// What it can do beyond what is needed, by wgpu's names.
    pub features: Vec<&'static str>,
}

impl AdapterSummary {
    fn new(index: usize, adapter: &wgpu::Adapter) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        let offered = adapter.features();
        let features = FEATURES
            .iter()
            .filter(|(_, feature)| offered.contains(*feature));
        Self {
            index,
            driver: format!("{} {}", info.driver, info.driver_info)
                .trim()
                .to_owned(),
            api: format!("{:?}", info.backend),
            kind: format!("{:?}", info.device_type),
            name: info.name,
            max_buffer_bytes: limits.max_buffer_size,
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
            features: features.map(|(name, _)| *name).collect(),
        }
    }

    /// Whether `wanted` is its index or a part of its name.
    fn is_called(&self, wanted: &str) -> bool {
        let name = self.name.to_lowercase();
        wanted.parse() == Ok(self.index) || name.contains(&wanted.to_lowercase())
    }
}

impl std::fmt::Display for AdapterSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", self.index, self.name, self.api)
    }
}

/// Features worth listing.
const FEATURES: [(&str, wgpu::Features); 8] = [
    ("SHADER_F16", wgpu::Features::SHADER_F16),
    ("SUBGROUP", wgpu::Features::SUBGROUP),
    ("IMMEDIATES", wgpu::Features::IMMEDIATES),
    ("TIMESTAMP_QUERY", wgpu::Features::TIMESTAMP_QUERY),
    ("PIPELINE_CACHE", wgpu::Features::PIPELINE_CACHE),
    (
        "MAPPABLE_PRIMARY_BUFFERS",
        wgpu::Features::MAPPABLE_PRIMARY_BUFFERS,
    ),
    ("PASSTHROUGH_SHADERS", wgpu::Features::PASSTHROUGH_SHADERS),
    (
        "EXPERIMENTAL_COOPERATIVE_MATRIX",
        wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX,
    ),
];

/// The adapters of this machine.
#[must_use]
pub fn adapters() -> Vec<AdapterSummary> {
    let all = found();
    let all = all.iter().enumerate();
    all.map(|(i, adapter)| AdapterSummary::new(i, adapter))
        .collect()
}

fn found() -> Vec<wgpu::Adapter> {
    let descriptor = wgpu::InstanceDescriptor {
        backends: wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let backends = descriptor.backends;
    pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(backends))
}

/// An open device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) adapter: AdapterSummary,
    pub(crate) limits: Limits,
    pub(crate) features: Features,
    failure: Arc<Mutex<Option<Error>>>,
}

/// What sizes of work depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Most bytes that are bound at once, a multiple of four.
    pub(crate) binding_bytes: u64,
    /// Alignment of the first byte of a binding.
    pub(crate) alignment: u64,
    /// Most workgroups in one dimension.
    pub(crate) workgroups: u32,
    /// Most memory of a workgroup.
    pub(crate) workgroup_bytes: u32,
    /// Most invocations of a workgroup.
    pub(crate) invocations: u32,
}

impl Device {
    /// Opens the device that the options ask for.
    ///
    /// # Errors
    /// [`Error::NoAdapter`], [`Error::Limit`], [`Error::Open`].
    pub(crate) fn open(options: &WgpuOptions) -> Result<Self> {
        let mut all = found();
        let summaries: Vec<AdapterSummary> = all
            .iter()
            .enumerate()
            .map(|(i, adapter)| AdapterSummary::new(i, adapter))
            .collect();
        let chosen = match &options.adapter {
            Some(wanted) => summaries.iter().position(|a| a.is_called(wanted)),
            None => {
                let real =
                    |a: &AdapterSummary| ["DiscreteGpu", "IntegratedGpu"].contains(&&*a.kind);
                let first = summaries.first().map(|_| 0);
                summaries.iter().position(real).or(first)
            }
        };
        let Some(chosen) = chosen else {
            return Err(Error::NoAdapter {
                wanted: options.adapter.clone(),
                found: summaries.iter().map(ToString::to_string).collect(),
            });
        };
        let adapter = all.swap_remove(chosen);
        let summary = summaries[chosen].clone();
        let mut limits = adapter.limits();
        let downlevel = adapter.get_downlevel_capabilities().flags;
        if !downlevel.contains(wgpu::DownlevelFlags::SHADER_F16_IN_F32) {
            return Err(Error::Feature {
                adapter: summary.to_string(),
                what: "conversions of halves",
            });
        }
        if limits.max_storage_buffers_per_shader_stage < STORAGE_BUFFERS {
            return Err(Error::Limit {
                adapter: summary.to_string(),
                what: "storage buffers a kernel",
                found: limits.max_storage_buffers_per_shader_stage.into(),
                needed: STORAGE_BUFFERS.into(),
            });
        }
        limits.max_storage_buffer_binding_size = limits
            .max_storage_buffer_binding_size
            .min(options.max_binding_bytes)
            .min(limits.max_buffer_size);
        let sizes = Limits {
            binding_bytes: limits.max_storage_buffer_binding_size & !3,
            alignment: limits
                .min_storage_buffer_offset_alignment
                .max(limits.min_uniform_buffer_offset_alignment)
                .into(),
            workgroups: limits.max_compute_workgroups_per_dimension,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            invocations: limits
                .max_compute_invocations_per_workgroup
                .min(limits.max_compute_workgroup_size_x),
        };
        let features = options.features.offered_by(&adapter);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("thalweg"),
            required_features: features.required(),
            required_limits: limits,
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|source| Error::Open {
            adapter: summary.to_string(),
            source,
        })?;
        let failure = Arc::new(Mutex::new(None));
        let keep = keeper(&failure);
        device.on_uncaptured_error(Arc::new(move |error| {
            keep(Error::Driver {
                source: Arc::new(error),
            });
        }));
        let keep = keeper(&failure);
        device.set_device_lost_callback(move |reason, message| {
            let reason = match reason {
                wgpu::DeviceLostReason::Destroyed => "destroyed",
                wgpu::DeviceLostReason::Unknown => "unknown reason",
            };
            keep(Error::Lost { reason, message });
        });
        let opened = Self {
            device,
            queue,
            adapter: summary,
            limits: sizes,
            features,
            failure,
        };
        opened.allows(options.tuning)?;
        Ok(opened)
    }

    /// Fails for sizes of kernels that cannot be, here or anywhere.
    ///
    /// # Errors
    /// [`Error::Tuning`], [`Error::Limit`].
    pub(crate) fn allows(&self, tuning: Tuning) -> Result<()> {
        if let Some(fault) = tuning.fault() {
            return Err(Error::Tuning { fault });
        }
        let Limits {
            workgroup_bytes,
            invocations,
            ..
        } = self.limits;
        for (what, found, needed) in [
            (
                "bytes of workgroup memory",
                workgroup_bytes,
                tuning.workgroup_bytes(),
            ),
            ("invocations a workgroup", invocations, tuning.threads()),
        ] {
            if found < needed {
                return Err(Error::Limit {
                    adapter: self.adapter.to_string(),
                    what,
                    found: found.into(),
                    needed: needed.into(),
                });
            }
        }
        Ok(())
    }

    /// Fails with the first failure that there was.
    pub(crate) fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }

    /// A buffer of at least four bytes, zeroed.
    ///
    /// # Errors
    /// [`OutOfMemory`](thalweg_backend::Error::OutOfMemory) past the limits of a binding and when
    /// the device has no room.
    pub(crate) fn buffer(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> thalweg_backend::Result<wgpu::Buffer> {
        self.create(bytes, usage, false)
    }

    /// As [`buffer`](Self::buffer), mapped so that the host may write it.
    pub(crate) fn mapped_buffer(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> thalweg_backend::Result<wgpu::Buffer> {
        self.create(bytes, usage, true)
    }

    fn create(
        &self,
        bytes: u64,
        usage: wgpu::BufferUsages,
        mapped_at_creation: bool,
    ) -> thalweg_backend::Result<wgpu::Buffer> {
        self.check()?;
        let out_of_memory = thalweg_backend::Error::OutOfMemory {
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        };
        if bytes > self.limits.binding_bytes {
            return Err(out_of_memory);
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.next_multiple_of(4).max(4),
            usage,
            mapped_at_creation,
        });
        match pollster::block_on(scope.pop()) {
            None => Ok(buffer),
            Some(_) => Err(out_of_memory),
        }
    }

    /// Room for `n` timestamps; the device must have [`Features::timestamps`].
    pub(crate) fn timestamps(&self, n: u32) -> Result<wgpu::QuerySet> {
        self.check()?;
        Ok(self.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: n,
        }))
    }

    /// Writes bytes before what is submitted next. A length that is no multiple of four is filled up
    /// with zeros, for which buffers have room.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, at: u64, bytes: &[u8]) {
        let (whole, rest) = bytes.split_at(bytes.len() & !3);
        self.queue.write_buffer(buffer, at, whole);
        if !rest.is_empty() {
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            self.queue
                .write_buffer(buffer, at + whole.len() as u64, &last);
        }
    }

    /// Waits until the device has done everything that was submitted.
    pub(crate) fn wait(&self) -> Result<()> {
        // What goes wrong here is told by the callbacks, or by the mapping that waits for it.
        let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
        self.check()?;
        polled.map(|_| ()).map_err(|source| Error::Map {
            source: Arc::new(source),
        })
    }
}

/// A function that keeps the first error it is given.
fn keeper(failure: &Arc<Mutex<Option<Error>>>) -> impl Fn(Error) + Send + Sync + 'static {
    let failure = Arc::clone(failure);
    move |error| {
        let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
        // A lost device explains whatever came before it.
        if first.is_none() || matches!(error, Error::Lost { .. }) {
            *first = Some(error);
        }
    }
}
