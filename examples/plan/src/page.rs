//! What is shown: a small table for people, an object for programs. Owns no figure.

use std::fmt::Write;

use serde_json::{Value, json};
use thalweg_runtime::{Error, MemoryPlan, ModelSpec};

use crate::args::Args;
use crate::forecast::{Forecast, expert_bytes};
use crate::measure::Row;

pub(crate) struct Page {
    /// The split, or the figures of why there is none.
    pub(crate) planned: Result<MemoryPlan, Error>,
    pub(crate) floor_bytes: u64,
    pub(crate) spec: ModelSpec,
    pub(crate) forecast: Option<Forecast>,
    pub(crate) rows: Vec<Row>,
}

impl Page {
    /// Bytes of the experts that one token uses, and of all.
    fn working_set(&self) -> (u64, u64) {
        let bytes = expert_bytes(&self.spec);
        let experts = self.spec.experts.iter().zip(&bytes);
        experts.fold((0, 0), |(one, all), (e, b)| {
            (one + e.k as u64 * b, all + e.n_expert as u64 * b)
        })
    }

    /// The source that was fastest with its best reader, if there were two.
    fn better(&self) -> Option<&Row> {
        let is_alone = self.rows.iter().all(|row| row.source == "model file");
        let direct = || self.rows.iter().filter(|row| row.direct);
        // The page cache would decide otherwise.
        let fastest = direct().min_by(|a, b| a.ms_per_token.total_cmp(&b.ms_per_token));
        fastest.filter(|_| !is_alone)
    }

    pub(crate) fn json(&self, args: &Args) -> Value {
        let (token_bytes, all_bytes) = self.working_set();
        let plan = self.planned.as_ref().ok();
        let split = plan.map(|plan| {
            json!({
                "budget_bytes": plan.budget_bytes,
                "total_bytes": plan.total_bytes(),
                "dense_bytes": plan.dense_bytes,
                "state_bytes": plan.state_bytes,
                "workspace_bytes": plan.workspace_bytes,
                "row_cache_bytes": plan.row_cache_bytes,
                "overhead_bytes": plan.overhead_bytes,
                "reader_bytes": plan.reader_bytes,
                "arena_bytes": plan.arena_bytes,
                "slots": plan.slots,
                "transit_slots": plan.transit_slots,
                "chunk_tokens": plan.chunk_tokens,
                "n_ctx": plan.n_ctx,
            })
        });
        json!({
            "model": args.file.to_string_lossy(),
            "sidecar": args.sidecar.as_ref().map(|path| path.to_string_lossy()),
            "fits": plan.is_some(),
            "why_not": self.planned.as_ref().err().map(Error::to_string),
            "floor_bytes": self.floor_bytes,
            "token_expert_bytes": token_bytes,
            "all_expert_bytes": all_bytes,
            "plan": split,
            "forecast": self.forecast.as_ref().map(Forecast::json),
            "measured": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "better": self.better().map(|row| row.source),
        })
    }

    pub(crate) fn text(&self, args: &Args) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<28}{value}");
        };
        match &self.planned {
            Err(error) => line("does not fit", error.to_string()),
            Ok(plan) => {
                line("budget", mib(plan.budget_bytes));
                line("  dense weights", mib(plan.dense_bytes));
                line(
                    "  sequence",
                    format!("{} for {} tokens", mib(plan.state_bytes), plan.n_ctx),
                );
                let chunk = plan.chunk_tokens;
                line(
                    "  intermediates",
                    format!("{}, chunk of {chunk}", mib(plan.workspace_bytes)),
                );
                line("  rows", mib(plan.row_cache_bytes));
                line("  threads", mib(plan.overhead_bytes));
                line("  reader", mib(plan.reader_bytes));
                line(
                    "  expert slots",
                    format!("{}, {}", mib(plan.arena_bytes), slots(plan)),
                );
                line("  left over", mib(plan.budget_bytes - plan.total_bytes()));
            }
        }
        let (token_bytes, all_bytes) = self.working_set();
        let floor = self.floor_bytes;
        line("smallest budget", format!("{} ({floor} bytes)", mib(floor)));
        line("experts of one token", mib(token_bytes));
        line("experts of the model", mib(all_bytes));
        if let Some(told) = &self.forecast {
            let rate = |rate: Option<f64>, needs: &str| match rate {
                Some(rate) => format!("{rate:.2} tokens/s"),
                None => format!("unknown: the host file has no {needs}"),
            };
            let floor = "decode_floor_ms";
            line("forecast", format!("from {:.2} GB/s", told.gb_per_s));
            line("  filling the slots", format!("{:.2} s", told.fill_s));
            line(
                "  decode, nothing resident",
                rate(told.cold_tokens_per_s, floor),
            );
            if let Some((share, warm)) = told.warm {
                line(
                    &format!("  decode, {:.1} % hits", share * 100.0),
                    rate(warm, floor),
                );
            }
            let prefill = rate(told.prefill_tokens_per_s, "prefill_ceiling_tokens_per_s");
            line(&format!("  prompt of {}", args.prompt), prefill);
        }
        for row in &self.rows {
            let how = if row.direct {
                ""
            } else {
                ", through the page cache"
            };
            let (ms, rate) = (row.ms_per_token, row.gb_per_s);
            let name = format!("{}, {}", row.source, row.reader);
            line(&name, format!("{ms:.2} ms/token, {rate:.3} GB/s{how}"));
        }
        if let Some(row) = self.better() {
            line("better here", format!("{} with {}", row.source, row.reader));
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// Slots of the layers, in as few words as they allow.
fn slots(plan: &MemoryPlan) -> String {
    let least = plan.slots.iter().min().copied().unwrap_or(0);
    let most = plan.slots.iter().max().copied().unwrap_or(0);
    let each = match least == most {
        true => format!("{least} a layer"),
        false => format!("{least} to {most} a layer"),
    };
    format!("{each} and {} in transit", plan.transit_slots)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
