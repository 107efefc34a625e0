//! One number for all memory: what is taken for what, decided before anything large is read.
//!
//! Owns the split of the budget; the parts are measured by the crates that take them. Order of
//! claims: dense weights, sequence state, the reader's buffers, the smallest arena and the smallest
//! chunk are needs; what is left goes to intermediates (a larger chunk) up to a half, to transit
//! slots up to a sixteenth of the arena, then to the layers.
//! A device with memory of its own has a budget of its own for weights, state and intermediates, and
//! what is left there goes to copies of experts; the host's then has none of these.

use thalweg_backend::DeviceMemory;
use thalweg_store::{ExpertLayout, RowTable};

use crate::{Error, Result};

/// Longest chunk that is chosen without being asked for.
const MAX_AUTO_CHUNK: usize = 512;
/// Largest row cache that is chosen.
const MAX_ROW_CACHE_BYTES: u64 = 16 << 20;
/// Transit slots where a layer has fewer slots than experts: one is loaded while one is used.
const MIN_TRANSIT: usize = 2;
/// Enough to keep a drive busy; more would be taken from the layers.
const MAX_AUTO_TRANSIT: u64 = 24;

/// The split of a budget. All figures in bytes unless named otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// What was allowed.
    pub budget_bytes: u64,
    /// Resident weights.
    pub dense_bytes: u64,
    /// State of one sequence, its logits included, and the staging of its next chunk.
    pub state_bytes: u64,
    /// Intermediates of a chunk.
    pub workspace_bytes: u64,
    /// Cache of table rows and the buffers that fill it.
    pub row_cache_bytes: u64,
    /// What the backend takes beside buffers and weights: threads.
    pub overhead_bytes: u64,
    /// Buffers of the reader of experts.
    pub reader_bytes: u64,
    /// Expert slots: those of the layers and those in transit.
    pub arena_bytes: u64,
    /// Slots of each layer.
    pub slots: Vec<usize>,
    /// Slots outside the layers.
    pub transit_slots: usize,
    /// Tokens of the largest chunk.
    pub chunk_tokens: usize,
    /// Tokens of the longest sequence.
    pub n_ctx: usize,
    /// What is in a device's own memory; `None` where there is none, and the figures above are for
    /// everything.
    pub device: Option<DevicePlan>,
}

/// The split of a device's own memory. All figures in bytes unless named otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DevicePlan {
    /// What was allowed; `None` where nobody said, and experts have the backend's own limit.
    pub budget_bytes: Option<u64>,
    /// Resident weights.
    pub dense_bytes: u64,
    /// State of one sequence and the staging of its next chunk.
    pub state_bytes: u64,
    /// Intermediates of a chunk.
    pub workspace_bytes: u64,
    /// What the backend takes beside all that: uploads and experts in passing.
    pub overhead_bytes: u64,
    /// Copies of experts that stay.
    pub expert_bytes: u64,
    /// Copies of each layer.
    pub slots: Vec<usize>,
}

impl DevicePlan {
    /// Everything that the plan takes; never above the budget.
    pub fn total_bytes(&self) -> u64 {
        self.dense_bytes
            + self.state_bytes
            + self.workspace_bytes
            + self.overhead_bytes
            + self.expert_bytes
    }
}

impl MemoryPlan {
    /// Everything that the plan takes of the host's memory; never above the budget.
    pub fn total_bytes(&self) -> u64 {
        self.dense_bytes
            + self.state_bytes
            + self.workspace_bytes
            + self.row_cache_bytes
            + self.overhead_bytes
            + self.reader_bytes
            + self.arena_bytes
    }
}

/// What a model needs, as far as it is not a matter of choice.
#[derive(Debug)]
pub(crate) struct Needs<'a> {
    pub(crate) dense_bytes: u64,
    pub(crate) state_bytes: u64,
    pub(crate) overhead_bytes: u64,
    pub(crate) reader_bytes: u64,
    pub(crate) workspace_bytes_per_token: u64,
    /// Size of the table that is read by row; `None` without one.
    pub(crate) row_table_bytes: Option<u64>,
    pub(crate) layout: &'a ExpertLayout,
    /// Experts per token, by layer.
    pub(crate) k: &'a [usize],
    pub(crate) n_ctx: usize,
    /// What is in a device's own memory, and not among the above.
    pub(crate) device: Option<DeviceNeeds>,
}

/// What a model needs of a device's own memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DeviceNeeds {
    pub(crate) memory: DeviceMemory,
    pub(crate) dense_bytes: u64,
    pub(crate) state_bytes: u64,
    pub(crate) workspace_bytes_per_token: u64,
}

impl DeviceNeeds {
    /// The longest chunk for which there is room: the one asked for, or one that leaves half of the
    /// room to experts.
    fn chunk(&self, wished: Option<usize>, n_ctx: usize) -> Result<usize> {
        let most = wished.unwrap_or(MAX_AUTO_CHUNK).min(n_ctx).max(1);
        let Some(budget_bytes) = self.memory.budget_bytes else {
            return Ok(most);
        };
        let other_bytes = self.memory.overhead_bytes;
        let fixed = self.dense_bytes + self.state_bytes + other_bytes;
        let workspace = |chunk: usize| self.workspace_bytes_per_token.saturating_mul(chunk as u64);
        let mut chunk = most;
        if wished.is_none() {
            let free = budget_bytes.saturating_sub(fixed);
            while chunk > 1 && workspace(chunk) > free / 2 {
                chunk = chunk.div_ceil(2);
            }
        }
        let needed_bytes = fixed + workspace(chunk);
        if needed_bytes > budget_bytes {
            return Err(Error::DeviceBudget {
                budget_bytes,
                needed_bytes,
                dense_bytes: self.dense_bytes,
                state_bytes: self.state_bytes,
                n_ctx,
                workspace_bytes: workspace(chunk),
                chunk_tokens: chunk,
                other_bytes,
            });
        }
        Ok(chunk)
    }

    /// The split for a chunk that fits.
    fn plan(&self, chunk_tokens: usize, layout: &ExpertLayout) -> DevicePlan {
        let DeviceMemory {
            budget_bytes,
            expert_bytes,
            overhead_bytes,
        } = self.memory;
        let workspace_bytes = self
            .workspace_bytes_per_token
            .saturating_mul(chunk_tokens as u64);
        let taken = self.dense_bytes + self.state_bytes + overhead_bytes + workspace_bytes;
        let for_experts = budget_bytes.map_or(expert_bytes, |all| all.saturating_sub(taken));
        let slots = layout.slots_for_budget(for_experts);
        DevicePlan {
            budget_bytes,
            dense_bytes: self.dense_bytes,
            state_bytes: self.state_bytes,
            workspace_bytes,
            overhead_bytes,
            expert_bytes: match slots.iter().all(|n| *n == 0) {
                true => 0,
                false => layout.bytes_for(&slots),
            },
            slots,
        }
    }
}

/// What the caller asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wishes {
    pub(crate) budget_bytes: u64,
    pub(crate) chunk_tokens: Option<usize>,
    pub(crate) slots_per_layer: Option<usize>,
    pub(crate) arena_bytes: Option<u64>,
    pub(crate) transit_slots: Option<usize>,
}

/// Splits the budget.
///
/// # Errors
/// [`Error::Budget`] and [`Error::DeviceBudget`] with the figures when the needs, or what was asked
/// for, do not fit;
/// [`Error::Option`] for a chunk of 0, for fewer slots than experts per token, and for no transit
/// slots where there are fewer slots than experts.
pub(crate) fn plan(needs: &Needs<'_>, wishes: Wishes) -> Result<MemoryPlan> {
    let n_ctx = needs.n_ctx;
    let n_layer = needs.layout.n_layer();
    let expert_count = |l: usize| needs.layout.n_expert(l);
    // The buffers that fill the cache of rows are needed, the cache itself is a luxury.
    let row_buffers = needs
        .row_table_bytes
        .map_or(0, |_| RowTable::STAGING_BYTES as u64);
    if wishes.chunk_tokens == Some(0) {
        let expected = "at least 1".to_owned();
        return Err(Error::Option {
            option: "chunk",
            expected,
            found: "0".to_owned(),
        });
    }
    let min_slots = needs.k.iter().copied().max().unwrap_or(0);
    if let Some(slots) = wishes.slots_per_layer.filter(|s| *s < min_slots) {
        let expected = format!("at least the {min_slots} experts that a token uses");
        return Err(Error::Option {
            option: "slots",
            expected,
            found: slots.to_string(),
        });
    }
    let slots_at_least = |l: usize| match wishes.slots_per_layer {
        Some(slots) => slots.min(expert_count(l)),
        None => needs.k.get(l).copied().unwrap_or(0),
    };
    let least: Vec<usize> = (0..n_layer).map(slots_at_least).collect();
    let lacks_slots = |slots: &[usize]| (0..n_layer).any(|l| slots[l] < expert_count(l));
    let transit_bytes = |n: usize| (needs.layout.max_slot_bytes() as u64).saturating_mul(n as u64);
    let min_transit = match lacks_slots(&least) {
        true => wishes.transit_slots.unwrap_or(MIN_TRANSIT),
        false => 0,
    };
    let min_arena_bytes = needs.layout.bytes_for(&least) + transit_bytes(min_transit);

    let device_chunk = match &needs.device {
        Some(device) => device.chunk(wishes.chunk_tokens, n_ctx)?,
        None => MAX_AUTO_CHUNK,
    };
    let workspace = |chunk: usize| needs.workspace_bytes_per_token.saturating_mul(chunk as u64);
    let min_chunk = wishes.chunk_tokens.map_or(1, |c| c.min(n_ctx));
    let other_bytes = needs.overhead_bytes + needs.reader_bytes + row_buffers;
    let fixed = needs.dense_bytes + needs.state_bytes + other_bytes;
    let needed_bytes = fixed + min_arena_bytes + workspace(min_chunk);
    let Some(free) = wishes.budget_bytes.checked_sub(needed_bytes) else {
        return Err(Error::Budget {
            budget_bytes: wishes.budget_bytes,
            needed_bytes,
            dense_bytes: needs.dense_bytes,
            state_bytes: needs.state_bytes,
            n_ctx,
            workspace_bytes: workspace(min_chunk),
            chunk_tokens: min_chunk,
            other_bytes,
            min_arena_bytes,
            min_slots: least.iter().copied().max().unwrap_or(0),
        });
    };

    let cache_limit = (wishes.budget_bytes / 64)
        .min(MAX_ROW_CACHE_BYTES)
        .min(free / 4);
    let cache_bytes = needs
        .row_table_bytes
        .map_or(0, |table| table.min(cache_limit));
    let free = free - cache_bytes;

    let chunk_tokens = match wishes.chunk_tokens {
        Some(_) => min_chunk,
        None => {
            let mut chunk = device_chunk.min(n_ctx).max(1);
            while chunk > 1 && workspace(chunk) > free / 2 {
                chunk = chunk.div_ceil(2);
            }
            chunk
        }
    };
    let device = needs.device.map(|d| d.plan(chunk_tokens, needs.layout));
    let free = free - (workspace(chunk_tokens) - workspace(min_chunk));
    let min_layers_bytes = min_arena_bytes - transit_bytes(min_transit);
    let slots_for = |transit: usize| match wishes.slots_per_layer {
        Some(_) => least.clone(),
        None => {
            let more = free - transit_bytes(transit - min_transit);
            let most = wishes.arena_bytes.unwrap_or(u64::MAX);
            let for_layers = (min_layers_bytes + more).min(most.max(min_layers_bytes));
            needs.layout.slots_for_budget(for_layers)
        }
    };
    let transit = match wishes.transit_slots {
        Some(_) => min_transit,
        None => {
            let share = ((min_arena_bytes + free) / 16).min(free + transit_bytes(min_transit));
            let affordable = share / (needs.layout.max_slot_bytes() as u64).max(1);
            let affordable = affordable.min(MAX_AUTO_TRANSIT) as usize;
            affordable.max(min_transit)
        }
    };
    // Where every expert has a slot nothing is ever in transit.
    let all = slots_for(min_transit);
    if wishes.transit_slots == Some(0) && lacks_slots(&all) {
        let expected = "at least 1 where a layer has fewer slots than experts".to_owned();
        return Err(Error::Option {
            option: "transit slots",
            expected,
            found: "0".to_owned(),
        });
    }
    let (slots, transit) = match min_transit == 0 || !lacks_slots(&all) {
        true => (all, 0),
        false => (slots_for(transit), transit),
    };
    Ok(MemoryPlan {
        budget_bytes: wishes.budget_bytes,
        dense_bytes: needs.dense_bytes,
        state_bytes: needs.state_bytes,
        workspace_bytes: workspace(chunk_tokens),
        row_cache_bytes: row_buffers + cache_bytes,
        overhead_bytes: needs.overhead_bytes,
        reader_bytes: needs.reader_bytes,
        arena_bytes: needs.layout.bytes_for(&slots) + transit_bytes(transit),
        slots,
        transit_slots: transit,
        chunk_tokens,
        n_ctx,
        device,
    })
}

/// Reads a size: a number of bytes, or a number with KiB, MiB, GiB and so on to EiB (powers of
/// 1024) or kB, MB, GB and so on to EB (powers of 1000), with or without a space.
///
/// # Errors
/// [`Error::Size`] for anything else.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let error = || Error::Size {
        text: text.to_owned(),
    };
    let trimmed = text.trim();
    let unit_at = trimmed
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_at);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "pib" => 1 << 50,
        "eib" => 1 << 60,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "eb" => 1_000_000_000_000_000_000,
        _ => return Err(error()),
    };
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(error);
    }
    let value: f64 = number.parse().map_err(|_| error())?;
    let bytes = value * factor as f64;
    match bytes.is_finite() && bytes >= 0.0 && bytes < u64::MAX as f64 {
        true => Ok(bytes as u64),
        false => Err(error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_up_to_what_64_bits_hold() {
        for (text, bytes) in [
            ("7", 7),
            ("24 MiB", 24 << 20),
            ("1.5kB", 1500),
            ("2PiB", 2 << 50),
            ("3 pb", 3_000_000_000_000_000),
            ("15EiB", 15 << 60),
            ("0.5EB", 500_000_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text).ok(), Some(bytes), "{text}");
        }
        for text in ["", "-1", "16EiB", "1e999", "nan", "8ZiB", "GiB"] {
            let error = parse_bytes(text).expect_err(text).to_string();
            assert!(error.contains("EiB"), "{error}");
        }
    }
}
