//! Clocks and counting kernels.

mod common;

use thalweg_backend::Backend;
use thalweg_wgpu::{Arithmetic, Clock, Features, WgpuOptions};

use common::device;

#[test]
fn more_work_takes_longer_on_either_clock() {
    for features in [Features::all(), Features::none()] {
        let mut options = WgpuOptions::default();
        options.features = features;
        let Some(backend) = device(&options) else {
            return;
        };
        if features == Features::none() {
            assert_eq!(backend.clock(), Clock::Host);
        }
        let mut rec = backend.recorder();
        let mut out = backend.alloc(64 * 8).unwrap();
        let mut seconds = |n_steps| {
            let work = |rec: &mut _| {
                let n = backend.arithmetic(rec, Arithmetic::F32, 8, n_steps, &mut out)?;
                assert_eq!(n, 8 * 64 * n_steps as u64 * 64 * 2);
                Ok(())
            };
            backend.time(&mut rec, work).unwrap().as_secs_f64()
        };
        // The first compiles.
        seconds(1);
        let (little, much) = (seconds(1), seconds(20_000));
        assert!(little > 0.0);
        assert!(much > 4.0 * little, "{little} and {much} s");
    }
}

#[test]
fn counting_kernels_compute_what_they_count() {
    let Some(backend) = device(&WgpuOptions::default()) else {
        return;
    };
    let mut kinds = vec![(Arithmetic::F32, 1.0, 1e-4)];
    if backend.features().f16 {
        kinds.push((Arithmetic::F16, 2.0, 2e-2));
    }
    for (kind, width, tolerance) in kinds {
        let mut rec = backend.recorder();
        let mut out = backend.alloc(64).unwrap();
        // s = a s + b goes to b / (1 - a), for sixteen sums of `width` numbers.
        let done = backend.arithmetic(&mut rec, kind, 1, 500, &mut out);
        assert_eq!(done.unwrap(), 2 * 64 * 500 * 64 * width as u64);
        let mut sums = [0.0; 64];
        backend.read(&mut rec, &out, 0, &mut sums).unwrap();
        for (lane, sum) in sums.into_iter().enumerate() {
            let a = 0.5 + 0.001 * lane as f64;
            let expected = 16.0 * width * 0.25 / (1.0 - a);
            let off = (f64::from(sum) / expected - 1.0).abs();
            assert!(off < tolerance, "{kind:?} {lane}: {sum} not {expected}");
        }
    }
}

#[test]
fn what_a_mask_leaves_out_is_refused_by_name() {
    let mut options = WgpuOptions::default();
    options.features = Features::none();
    if let Some(backend) = device(&options) {
        assert_eq!(backend.features(), Features::none());
        let mut out = backend.alloc(64).unwrap();
        let mut rec = backend.recorder();
        let refused = backend.arithmetic(&mut rec, Arithmetic::F16, 1, 1, &mut out);
        let error = refused.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.ends_with("is used without arithmetic on halves"));
        let short = backend.arithmetic(&mut rec, Arithmetic::F32, 2, 1, &mut out);
        assert!(short.unwrap_err().to_string().contains("arithmetic"));
    }
}
