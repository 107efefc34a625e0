//! What a device may do beyond the common ground, and what of it is used.
//!
//! Owns the choice, in one place: a kernel asks [`Features`], never the adapter. Memory: none.

/// Abilities that speed something up where they are present; without them something plainer runs.
///
/// As an option it is a mask: what is `false` is not used even where the adapter has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Times told by the device. Without: the host's clock around a submission.
    pub timestamps: bool,
    /// Arithmetic on halves.
    pub f16: bool,
}

impl Features {
    /// Everything that this crate can make use of.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            timestamps: true,
            f16: true,
        }
    }

    /// Only what every device has.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            timestamps: false,
            f16: false,
        }
    }

    /// What the adapter has of what `self` lets be used.
    pub(crate) fn offered_by(self, adapter: &wgpu::Adapter) -> Self {
        let has = |wanted: wgpu::Features| adapter.features().contains(wanted);
        Self {
            timestamps: self.timestamps && has(timestamps()),
            f16: self.f16 && has(wgpu::Features::SHADER_F16),
        }
    }

    /// What a device must be asked for.
    pub(crate) fn required(self) -> wgpu::Features {
        let mut required = wgpu::Features::empty();
        required.set(timestamps(), self.timestamps);
        required.set(wgpu::Features::SHADER_F16, self.f16);
        required
    }

    /// The names of those in use.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [("timestamps", self.timestamps), ("f16", self.f16)];
        let used = all.into_iter().filter(|(_, used)| *used);
        used.map(|(name, _)| name).collect()
    }
}

impl Default for Features {
    fn default() -> Self {
        Self::all()
    }
}

/// Timestamps between passes, where a measurement starts and ends.
fn timestamps() -> wgpu::Features {
    wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
}
