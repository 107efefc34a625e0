//! Reports as JSON and as text.

use serde_json::{Map, Value, json};
use thalweg_cache::sim::{Counts, Report, RouteCounts, RoutedReport};
use thalweg_examples_common::print_line;

use crate::input::Input;

/// The figures of some accesses. Undefined ones are null.
pub(crate) fn counts(counts: &Counts, has_bytes: bool) -> Map<String, Value> {
    let bytes = counts.bytes_per_token().filter(|_| has_bytes);
    let per_token = |n: u64| (counts.n_tokens > 0).then(|| n as f64 / counts.n_tokens as f64);
    object(json!({
        "n_tokens": counts.n_tokens,
        "misses_per_token": counts.misses_per_token(),
        "hit_rate": counts.hit_rate(),
        "bytes_per_token": bytes,
        "n_picks": counts.n_picks,
        "n_misses": counts.n_misses,
        "n_compulsory": counts.n_compulsory,
        "compulsory_misses_per_token": per_token(counts.n_compulsory),
        "n_evicted": counts.n_evicted,
        "n_bypassed": counts.n_bypassed,
    }))
}

/// What a bias cost. Without one, nothing.
pub(crate) fn routes(counts: Option<&RouteCounts>) -> Map<String, Value> {
    let figure = |of: fn(&RouteCounts) -> Option<f64>, exact: f64| match counts {
        Some(counts) => of(counts),
        None => Some(exact),
    };
    object(json!({
        "agreement": figure(RouteCounts::agreement, 1.0),
        "exact_set_rate": figure(RouteCounts::exact_set_rate, 1.0),
        "routing_kl": figure(RouteCounts::routing_kl, 0.0),
    }))
}

/// All figures of a simulation: pooled, by domain and by layer.
pub(crate) fn whole(
    input: &Input,
    report: &Report,
    routed: Option<&RoutedReport>,
) -> Map<String, Value> {
    let has_bytes = input.mean_expert_bytes().is_some();
    let mut all = counts(&report.total, has_bytes);
    all.extend(routes(routed.map(|r| &r.total)));
    let domains = report.domains.iter().enumerate().map(|(index, domain)| {
        let mut part = object(json!({ "name": input.domain(index) }));
        part.extend(counts(domain, has_bytes));
        part.extend(routes(routed.and_then(|r| r.domains.get(index))));
        Value::Object(part)
    });
    all.insert("domains".to_owned(), domains.collect());
    let layers = report.layers.iter().map(Counts::misses_per_token);
    all.insert(
        "misses_per_token_by_layer".to_owned(),
        json!(layers.collect::<Vec<_>>()),
    );
    all
}

/// The same for a person.
pub(crate) fn print(report: &Map<String, Value>) -> anyhow::Result<()> {
    let number = |row: &Map<String, Value>, key: &str| row.get(key).and_then(Value::as_f64);
    let figure = |row: &Map<String, Value>, key: &str, scale: f64, digits: usize| {
        number(row, key).map_or_else(|| "-".to_owned(), |v| format!("{:.digits$}", v * scale))
    };
    print_line(&format!(
        "{:12} {:>8} {:>12} {:>8} {:>10} {:>10} {:>10} {:>11}",
        "domain",
        "tokens",
        "misses/token",
        "hits %",
        "KiB/token",
        "first use",
        "agree %",
        "routing KL"
    ))?;
    let line = |name: &str, row: &Map<String, Value>| {
        print_line(&format!(
            "{name:12} {:>8} {:>12} {:>8} {:>10} {:>10} {:>10} {:>11}",
            figure(row, "n_tokens", 1.0, 0),
            figure(row, "misses_per_token", 1.0, 3),
            figure(row, "hit_rate", 100.0, 2),
            figure(row, "bytes_per_token", 1.0 / 1024.0, 1),
            figure(row, "n_compulsory", 1.0, 0),
            figure(row, "agreement", 100.0, 2),
            figure(row, "routing_kl", 1.0, 5),
        ))
    };
    for domain in report["domains"].as_array().into_iter().flatten() {
        if let Value::Object(row) = domain {
            line(row["name"].as_str().unwrap_or("?"), row)?;
        }
    }
    line("all", report)?;
    Ok(())
}

/// The object in a value made by `json!({..})`.
pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
