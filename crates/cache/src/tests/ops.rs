//! Operation sequences against a naive table, shrunk by proptest when they fail.

use alloc::vec::Vec;

use proptest::prelude::*;

use crate::PolicyKind;
use crate::testing::{OPS_N_KEYS, Op, check_ops, fuzz_ops, ops_config, ops_future};

fn op() -> impl Strategy<Value = Op> {
    (any::<u8>(), 0..=OPS_N_KEYS as u8).prop_map(|(code, key)| Op::from_bytes(code, key))
}

proptest! {
    #[test]
    fn table_and_policy_follow_the_model(ops in prop::collection::vec(op(), 0..120)) {
        let future = ops_future();
        for &kind in PolicyKind::ALL {
            let mut policy = kind.build(&ops_config(&future)).expect("valid");
            check_ops(&mut *policy, &ops);
        }
    }

    #[test]
    fn any_bytes_are_an_operation_sequence(data in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_ops(&data);
    }
}

#[test]
fn sequences_reach_every_outcome() {
    // The suite is worth what its sequences reach: evictions, failed loads, refusals.
    let future = ops_future();
    let ops: Vec<Op> = (0..=255u8)
        .flat_map(|code| (0..=12).map(move |key| Op::from_bytes(code, key)))
        .collect();
    for &kind in PolicyKind::ALL {
        let mut policy = kind.build(&ops_config(&future)).expect("valid");
        check_ops(&mut *policy, &ops);
    }
}
