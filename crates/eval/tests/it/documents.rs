//! The documented file is the one that is written.

use std::path::Path;

use thalweg_eval::{DrivePoint, Gemm, HostConstants};

#[test]
fn the_documented_example_is_what_is_written() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/host.md");
    let document = std::fs::read_to_string(path).expect("the document is in the repository");
    let (_, example) = document.split_once("```json\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");

    let mut host = HostConstants::default();
    host.facts.insert("cpu".into(), "8 cores".into());
    host.facts.insert("drive".into(), "NVMe, 1 TB".into());
    let first = DrivePoint {
        physical_ratio: Some(1.0),
        ..DrivePoint::new(1, 1, 1_392_640, 3.9)
    };
    host.drive = vec![first, DrivePoint::new(4, 1, 1_392_640, 6.8)];
    host.gemm = Some(Gemm {
        flops_per_s: 14.07e12,
        sag: 0.0086,
    });
    host.decode_floor_ms = Some(12.0);
    assert_eq!(HostConstants::from_json(example).expect("usable"), host);
    assert_eq!(host.to_json().expect("in range"), example);
}
