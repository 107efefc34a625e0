//! From a header and options to a split of the budget, before anything large is read.
//!
//! Owns what each part of a run takes; the split itself is `budget`. Memory: none to speak of.

use std::num::NonZeroUsize;

use thalweg_backend::{DeviceMemory, ExpertRoom, MatShape};
use thalweg_gguf::Gguf;
use thalweg_model::{ModelSpec, Outline};
use thalweg_store::io::{PoolBackend, ReaderKind};
use thalweg_store::{ExpertLayout, ExpertPartLayout, FileSet};

use crate::budget::{self, DeviceNeeds, DevicePlan, MemoryPlan, Needs, Wishes};
use crate::{EngineOptions, Error, Result, available_memory_bytes};

/// Budget where the system does not say how much memory is available.
const FALLBACK_BUDGET_BYTES: u64 = 4 << 30;
const F32: u64 = size_of::<f32>() as u64;
/// Share of a budget that a reader's buffers may take.
const READER_SHARE: u64 = 64;

/// Plans a run from a model file's header alone: what [`Engine::open`](crate::Engine::open) with
/// the same options on a backend that takes `overhead_bytes` for itself would do.
///
/// # Errors
/// [`Error::Model`] for an unusable header, [`Error::Budget`] when the model cannot run within the
/// budget, [`Error::Option`], and those of a sidecar that does not belong to the model.
pub fn plan_model(
    file: &Gguf,
    overhead_bytes: u64,
    options: &EngineOptions,
) -> Result<(MemoryPlan, ModelSpec)> {
    let outline = thalweg_model::outline(file, options.routers())?;
    let paths: Vec<_> = (0..file.n_shards()).filter_map(|s| file.path(s)).collect();
    let files = FileSet::open(&paths)?;
    let (_, layout) = expert_source(file, &files, outline.spec(), options)?;
    let plan = plan(outline.as_ref(), &layout, overhead_bytes, None, options)?;
    Ok((plan, outline.spec().clone()))
}

/// Splits the budget, and that of a device with memory of its own.
pub(crate) fn plan<M: Outline + ?Sized>(
    model: &M,
    layout: &ExpertLayout,
    overhead_bytes: u64,
    device: Option<DeviceMemory>,
    options: &EngineOptions,
) -> Result<MemoryPlan> {
    let spec = model.spec();
    let n_ctx = options.n_ctx;
    if n_ctx == 0 || n_ctx > spec.n_ctx_train {
        let expected = format!("1..={} (the model's context)", spec.n_ctx_train);
        return Err(Error::Option {
            option: "context",
            expected,
            found: n_ctx.to_string(),
        });
    }
    let k: Vec<usize> = spec.experts.iter().map(|e| e.k).collect();
    // Logits of the session and of the step, and a sampler's candidates; and the ranking of a
    // router's guess. Those of the head are where the model is.
    let widest_router = spec.experts.iter().map(|e| e.n_expert).max().unwrap_or(0);
    let rows = 5 * spec.n_vocab + widest_router;
    let state = model.state_len(n_ctx) + model.staging_len() + spec.n_vocab;
    let intermediates = model.workspace_shape().len_per_token();
    let device = device.map(|memory| DeviceNeeds {
        memory,
        dense_bytes: spec.dense_bytes,
        state_bytes: state as u64 * F32,
        workspace_bytes_per_token: intermediates as u64 * F32,
    });
    let on_host = |n: u64| if device.is_some() { 0 } else { n };
    let rows_per_token = spec
        .rows
        .as_ref()
        .map_or(0, |r| r.row_bytes * r.hash.rows_per_token());
    // An audit has the stored router's logits and choice besides.
    let widest_choice = k.iter().max().map_or(0, |k| 2 * k);
    let audit_len = match options.audit_routers {
        true => widest_router + widest_choice,
        false => 0,
    };
    let budget_bytes = options.budget_bytes.unwrap_or_else(|| {
        available_memory_bytes().map_or(FALLBACK_BUDGET_BYTES, |bytes| bytes / 4 * 3)
    });
    let reader_bytes = reader_bytes(options.reader, reads_under_way(options, budget_bytes)?);
    let needs = Needs {
        dense_bytes: on_host(spec.dense_bytes),
        overhead_bytes,
        reader_bytes,
        state_bytes: on_host(state as u64 * F32) + (rows + n_ctx) as u64 * F32,
        // With the host's copy of what the next router guesses.
        workspace_bytes_per_token: on_host(intermediates as u64 * F32)
            + (widest_router + audit_len) as u64 * F32
            + rows_per_token as u64,
        row_table_bytes: spec.rows.as_ref().map(|r| r.n_rows * r.row_bytes as u64),
        layout,
        k: &k,
        n_ctx,
        device,
    };
    let wishes = Wishes {
        budget_bytes,
        chunk_tokens: options.chunk_tokens,
        slots_per_layer: options.slots_per_layer,
        arena_bytes: options.arena_bytes,
        transit_slots: options.transit_slots,
    };
    budget::plan(&needs, wishes)
}

/// The room that a plan gives to copies of experts on a device.
pub(crate) fn expert_rooms(spec: &ModelSpec, plan: &DevicePlan) -> Vec<ExpertRoom> {
    let rooms = spec.experts.iter().zip(&plan.slots);
    rooms
        .map(|(experts, n_slots)| ExpertRoom {
            n_expert: experts.n_expert,
            n_slots: *n_slots,
            parts: experts.parts.each_ref().map(|p| MatShape {
                ty: p.ty,
                n_in: p.n_in,
                n_out: p.n_out,
            }),
        })
        .collect()
}

/// Reads under way at the same time: as asked for, or as many as are of use and whose buffers stay
/// a small part of the budget.
pub(crate) fn reads_under_way(options: &EngineOptions, budget_bytes: u64) -> Result<NonZeroUsize> {
    if let Some(n) = options.reads_under_way {
        return NonZeroUsize::new(n).ok_or_else(|| Error::Option {
            option: "reads under way",
            expected: "at least 1".to_owned(),
            found: n.to_string(),
        });
    }
    let of_use = match options.reader {
        ReaderKind::Pool => PoolBackend::DEFAULT_THREADS.get(),
        ReaderKind::Uring => 32,
        _ => 1,
    };
    let each = reader_bytes(options.reader, NonZeroUsize::MIN).max(1);
    let affordable = usize::try_from(budget_bytes / READER_SHARE / each).unwrap_or(usize::MAX);
    let n = of_use.min(affordable);
    Ok(NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN))
}

/// Buffers of a reader with so many reads under way.
fn reader_bytes(kind: ReaderKind, n: NonZeroUsize) -> u64 {
    match kind {
        // One buffer for unaligned ranges, which the pool's threads have each.
        ReaderKind::Pread => 0,
        // A ring's entries have the same buffers as a pool's threads.
        _ => PoolBackend::memory_bytes(n) as u64,
    }
}

/// The files that experts are read from and where they lie: the model's, or a sidecar's.
pub(crate) fn expert_source(
    file: &Gguf,
    files: &FileSet,
    spec: &ModelSpec,
    options: &EngineOptions,
) -> Result<(FileSet, ExpertLayout)> {
    match &options.sidecar {
        None => Ok((files.clone(), expert_layout(spec)?)),
        Some(path) => crate::open_sidecar(path, file, spec),
    }
}

/// Where the store finds each part of each expert in the model file.
pub(crate) fn expert_layout(spec: &ModelSpec) -> Result<ExpertLayout> {
    let mut layout = ExpertLayout::new();
    for experts in &spec.experts {
        let parts: Vec<_> = experts
            .parts
            .iter()
            .map(|p| ExpertPartLayout {
                file: p.shard,
                offset_bytes: p.offset_bytes,
                stride_bytes: p.stride_bytes,
                len_bytes: p.len_bytes,
            })
            .collect();
        layout.push_layer(experts.n_expert, &parts)?;
    }
    Ok(layout)
}
