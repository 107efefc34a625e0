//! A report as tables: Markdown for people, CSV for spreadsheets.
//!
//! Owns columns and their units. Memory: the text.

use std::fmt::Write;

use super::{Change, ModelFacts, Report, ScopeChange, file_name};
use crate::Figures;
use crate::statistics::Interval;

/// Scopes of [`Report::to_csv`] have these columns.
const CSV_HEADER: &str = "scope,name,windows,tokens,kld,kld_error,kld_low,kld_high,top1,top1_low,\
top1_high,reference_ppl,test_ppl,nll_change,nll_change_low,nll_change_high\n";

impl Report {
    /// A page of Markdown with aligned tables: figures by domain, changes against earlier models,
    /// what it was made from.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut page = format!(
            "# {} against {}\n\n",
            self.label(),
            file_name(&self.reference.file)
        );
        page += &self.table();
        let percent = 100.0 * self.bootstrap.level;
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "\nKLD is KL(reference || test) in nats a token over the whole vocabulary; top-1 is the \
             share of tokens\nat which both have the same likeliest token. Intervals of {percent} %: \
             {} resamples of windows, seed {}.\n",
            self.bootstrap.n_resamples, self.bootstrap.seed
        );
        for change in &self.changes {
            page += &change_table(change, percent);
        }
        let _ = write!(page, "\n## Made from\n\n{}", self.models());
        for text in &self.texts {
            let _ = writeln!(
                page,
                "- {}: domain {}, {} tokens",
                text.file, text.domain, text.n_tokens
            );
        }
        let spans = match &self.cut {
            Some(cut) => format!(
                "windows of {} tokens, scored from token {} on",
                cut.n_window, cut.n_context
            ),
            None => "windows with spans of their own".to_owned(),
        };
        let _ = writeln!(page, "- {spans}; {:.1} s", self.seconds);
        if let Some(overlap) = &self.overlap {
            let _ = writeln!(
                page,
                "- {} of {} windows share no {}-gram with the calibration texts; {} shared ones end \
                 in a scored token",
                overlap.n_clean(),
                overlap.n_windows,
                overlap.n,
                overlap.n_scored()
            );
        }
        for note in &self.notes {
            let _ = writeln!(page, "- note: {note}");
        }
        page
    }

    /// The figures alone, as a Markdown table.
    #[must_use]
    pub fn table(&self) -> String {
        let head = [
            "", "windows", "tokens", "KLD", "interval", "max KLD", "top-1 %", "interval",
            "PPL ref", "PPL test",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for (index, domain) in self.summary.domains.iter().enumerate() {
            let windows = self.windows.iter().filter(|w| w.domain == index);
            let max = windows.map(|w| w.max_kld).fold(f64::NEG_INFINITY, f64::max);
            rows.push(row(&domain.name, &domain.figures, &kld(max)));
        }
        let all = self.windows.iter().map(|w| w.max_kld);
        let max = kld(all.fold(f64::NEG_INFINITY, f64::max));
        rows.push(row("pooled", &self.summary.pooled, &max));
        rows.push(row("macro", &self.summary.macro_mean, ""));
        aligned(&rows)
    }

    /// One line for each domain, pooled and macro; what there is none of is empty.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = CSV_HEADER.to_owned();
        for domain in &self.summary.domains {
            csv += &csv_row("domain", &domain.name, &domain.figures);
        }
        csv += &csv_row("pooled", "", &self.summary.pooled);
        csv += &csv_row("macro", "", &self.summary.macro_mean);
        csv
    }

    /// One line for each window.
    #[must_use]
    pub fn windows_csv(&self) -> String {
        let mut csv = "window,domain,tokens,kld,max_kld,max_kld_position,top1,reference_nll,\
                       test_nll\n"
            .to_owned();
        for (index, window) in self.windows.iter().enumerate() {
            let n = window.n_tokens as f64;
            let domain = &self.summary.domains[window.domain].name;
            let _ = writeln!(
                csv,
                "{index},{},{},{},{},{},{},{},{}",
                quoted(domain),
                window.n_tokens,
                window.kld / n,
                window.max_kld,
                window.max_kld_position,
                window.n_same_top1 as f64 / n,
                window.reference_nll / n,
                window.test_nll / n,
            );
        }
        csv
    }

    fn models(&self) -> String {
        let line = |role: &str, m: &ModelFacts| {
            if m.bytes == 0 {
                return format!(
                    "- {role} {}: log-probabilities; sha256 {}\n",
                    m.file, m.sha256
                );
            }
            format!(
                "- {role} {}: {:.3} GB, of which experts {:.3} GB; {} experts a layer, {} used; \
                 activations {}, bias {}; sha256 {}\n",
                m.file,
                m.bytes as f64 / 1e9,
                m.expert_bytes as f64 / 1e9,
                m.n_expert,
                m.n_expert_used,
                m.activations,
                m.moce,
                m.sha256,
            )
        };
        line("reference", &self.reference) + &line("test", &self.test)
    }
}

fn change_table(change: &Change, percent: f64) -> String {
    let mut rows = vec![
        ["", "KLD before", "now", "change", "interval", "z", "p"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut add = |name: &str, c: &ScopeChange| {
        let share = |v: f64| format!("{:+.2} %", 100.0 * v);
        let ends = |i: Interval| format!("{:+.2} .. {:+.2}", 100.0 * i.low, 100.0 * i.high);
        rows.push(vec![
            name.to_owned(),
            kld(c.before),
            kld(c.after),
            c.relative.map_or_else(none, share),
            c.interval.map_or_else(none, ends),
            c.z.map_or_else(none, |z| format!("{:+.2}", z.z)),
            c.z.map_or_else(none, |z| format!("{:.1e}", z.p_two_sided)),
        ]);
    };
    for domain in &change.domains {
        add(&domain.name, &domain.change);
    }
    add("pooled", &change.pooled);
    add("macro", &change.macro_mean);
    format!(
        "\n## Against {}\n\n{}\n{} windows better, {} worse. Paired by window; intervals of \
         {percent} %.\n",
        change.against,
        aligned(&rows),
        change.n_better,
        change.n_worse
    )
}

fn row(name: &str, f: &Figures, max: &str) -> Vec<String> {
    let percent = |i: Interval| format!("{:.2} .. {:.2}", 100.0 * i.low, 100.0 * i.high);
    vec![
        name.to_owned(),
        f.n_windows.to_string(),
        f.n_tokens.to_string(),
        kld(f.kld),
        f.kld_interval
            .map_or_else(none, |i| format!("{} .. {}", kld(i.low), kld(i.high))),
        max.to_owned(),
        format!("{:.2}", 100.0 * f.top1),
        f.top1_interval.map_or_else(none, percent),
        format!("{:.3}", f.reference_ppl),
        format!("{:.3}", f.test_ppl),
    ]
}

fn none() -> String {
    "n/a".to_owned()
}

/// Four digits that count, and zero as what it is.
fn kld(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        v if v < 1e-4 => format!("{value:.3e}"),
        v if v < 1.0 => format!("{value:.6}"),
        _ => format!("{value:.4}"),
    }
}

/// A Markdown table whose columns line up; the first to the left, the others to the right.
fn aligned(rows: &[Vec<String>]) -> String {
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns)
        .map(|c| {
            let cells = rows.iter().filter_map(|row| row.get(c));
            cells
                .map(|cell| escaped(cell).chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut table = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let cell = escaped(cell);
            let _ = match column {
                0 => write!(table, "| {cell:<width$} |"),
                _ => write!(table, " {cell:>width$} |"),
            };
        }
        table.push('\n');
        if index == 0 {
            for (column, width) in widths.iter().enumerate() {
                let _ = match column {
                    0 => write!(table, "|-{}-|", "-".repeat(*width)),
                    _ => write!(table, "-{}:|", "-".repeat(*width)),
                };
            }
            table.push('\n');
        }
    }
    table
}

/// A cell that does not end its column.
fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn csv_row(scope: &str, name: &str, f: &Figures) -> String {
    let number = |v: Option<f64>| v.map_or_else(String::new, |v| v.to_string());
    let low = |i: Option<Interval>| number(i.map(|i| i.low));
    let high = |i: Option<Interval>| number(i.map(|i| i.high));
    let cells = [
        scope.to_owned(),
        quoted(name),
        f.n_windows.to_string(),
        f.n_tokens.to_string(),
        f.kld.to_string(),
        number(f.kld_error),
        low(f.kld_interval),
        high(f.kld_interval),
        f.top1.to_string(),
        low(f.top1_interval),
        high(f.top1_interval),
        f.reference_ppl.to_string(),
        f.test_ppl.to_string(),
        (f.test_nll - f.reference_nll).to_string(),
        low(f.nll_change_interval),
        high(f.nll_change_interval),
    ];
    cells.join(",") + "\n"
}

/// A field that may hold anything (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
