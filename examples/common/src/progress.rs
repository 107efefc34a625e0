//! Progress on a terminal for whatever takes longer than two seconds.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar over counted things, drawn on standard error where that is a terminal.
#[derive(Debug)]
pub struct CountBar(ProgressBar);

impl CountBar {
    /// A bar that is not drawn before its first update.
    pub fn new(what: &'static str, unit: &'static str) -> Self {
        // Shown when there is something to show.
        let bar = ProgressBar::hidden();
        let style = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {unit}, {{eta}} left");
        // An unusable template would show as the default style.
        if let Ok(style) = ProgressStyle::with_template(&style) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Self(bar)
    }

    /// A bar over tokens.
    pub fn tokens(what: &'static str) -> Self {
        Self::new(what, "tokens")
    }

    /// `done` of `total`; the bar goes when all are.
    pub fn update(&self, done: usize, total: usize) {
        if done >= total {
            self.finish();
        } else {
            self.0.set_length(total as u64);
            if self.0.is_hidden() {
                self.0
                    .set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            }
            self.0.set_position(done as u64);
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
