//! Reports as pictures: divergence window by window, and quality against size.
//!
//! Owns what is drawn; how is `plot`. Memory: the points and the text.

use super::Report;
use crate::Result;
use crate::plot::{Figure, Panel, Series};

impl Report {
    /// Mean divergence and agreement of each window, by domain, as SVG.
    ///
    /// # Errors
    /// [`Error::Plot`](crate::Error::Plot) when drawing fails.
    pub fn windows_svg(&self) -> Result<String> {
        let mut divergence = Panel::new("window", "KLD (nats a token)");
        divergence.from_zero = true;
        let mut agreement = Panel::new("window", "same top token (%)");
        for (index, domain) in self.summary.domains.iter().enumerate() {
            let windows = || {
                let numbered = self.windows.iter().enumerate();
                numbered.filter(move |(_, w)| w.domain == index)
            };
            let points = |of: fn(f64, f64, u64) -> f64| {
                windows()
                    .map(|(i, w)| (i as f64, of(w.n_tokens as f64, w.kld, w.n_same_top1)))
                    .collect()
            };
            let name = domain.name.as_str();
            divergence
                .series
                .push(Series::new(name, points(|n, kld, _| kld / n)));
            agreement.series.push(Series::new(
                name,
                points(|n, _, same| 100.0 * same as f64 / n),
            ));
        }
        let mut figure = Figure::new(format!("{}: windows", self.name()));
        figure.subtitle = format!(
            "against {}; {} tokens scored",
            super::file_name(&self.reference.file),
            self.summary.pooled.n_tokens
        );
        figure.panels = vec![divergence, agreement];
        figure.to_svg()
    }
}

/// Macro divergence against bytes of experts and against experts of a layer, for several test models
/// of one reference, as SVG. Each model is a point of its own: models differ in more than size, so
/// that a line between them would claim what nobody measured.
///
/// # Errors
/// [`Error::EmptyPlot`](crate::Error::EmptyPlot) for no reports,
/// [`Error::Plot`](crate::Error::Plot) when drawing fails.
pub fn quality_svg(reports: &[&Report]) -> Result<String> {
    let panel = |label: &str, size: fn(&Report) -> f64| {
        let mut panel = Panel::new(label, "macro KLD (nats a token)");
        panel.from_zero = true;
        panel.series = reports
            .iter()
            .map(|r| Series::new(r.label(), vec![(size(r), r.summary.macro_mean.kld)]))
            .collect();
        panel
    };
    let mut figure = Figure::new("Quality against size");
    if let Some(first) = reports.first() {
        figure.subtitle = format!("against {}", super::file_name(&first.reference.file));
    }
    if !reports.is_empty() {
        figure.panels = vec![
            panel("experts (MB)", |r| r.test.expert_bytes as f64 / 1e6),
            panel("experts of a layer", |r| r.test.n_expert as f64),
        ];
    }
    figure.to_svg()
}
