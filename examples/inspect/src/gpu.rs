//! The GPUs of this machine. Owns: their page and their JSON. Does not own: finding them
//! (`thalweg-wgpu`). Memory: none to speak of.

use std::io::{self, Write};

use serde_json::{Value as Json, json};
use thalweg_wgpu::AdapterSummary;

/// Every adapter as one object.
pub(crate) fn object(adapters: &[AdapterSummary]) -> Json {
    let adapter = |a: &AdapterSummary| {
        json!({
            "index": a.index, "name": a.name, "kind": a.kind, "api": a.api, "driver": a.driver,
            "max_buffer_bytes": a.max_buffer_bytes, "max_binding_bytes": a.max_binding_bytes,
            "subgroup_sizes": [a.subgroup_sizes.0, a.subgroup_sizes.1], "features": a.features,
        })
    };
    json!({ "adapters": adapters.iter().map(adapter).collect::<Vec<_>>() })
}

/// Every adapter in a paragraph, and what to do where there is none.
pub(crate) fn print(adapters: &[AdapterSummary], out: &mut impl Write) -> io::Result<()> {
    if adapters.is_empty() {
        writeln!(
            out,
            "no GPU: no Vulkan driver, Metal or DX12 was found. --backend cpu needs none; a software \
             driver for tests is in the package mesa-vulkan-drivers of Debian and Ubuntu"
        )?;
    }
    for a in adapters {
        let mib = |bytes: u64| bytes >> 20;
        let (fewest, most) = a.subgroup_sizes;
        writeln!(out, "{}: {}", a.index, a.name)?;
        writeln!(out, "  {}, {}, driver {}", a.kind, a.api, a.driver)?;
        writeln!(
            out,
            "  buffers up to {} MiB, {} MiB of one bound at a time, subgroups of {fewest} to {most}",
            mib(a.max_buffer_bytes),
            mib(a.max_binding_bytes)
        )?;
        let features = match a.features.is_empty() {
            true => "none of those that kernels can use".to_owned(),
            false => a.features.join(", "),
        };
        writeln!(out, "  features: {features}")?;
    }
    Ok(())
}
