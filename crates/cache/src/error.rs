//! `Error`: everything that can go wrong in this crate, with the facts.
//!
//! Hand-written because the crate has no dependencies. Owns no state.

use alloc::string::String;
use core::fmt;

use crate::{Key, PolicyKind, SlotId, SlotState};

/// What went wrong; each variant carries the numbers that a message needs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A cache must hold at least one whole batch.
    CapacityBelowBatch {
        /// Slots offered.
        capacity: u32,
        /// Keys that one access needs at the same time.
        batch: u32,
    },
    /// A capacity or batch of zero, or more keys than an id can name.
    BadShape {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: u32,
        /// Least value allowed.
        min: u32,
        /// Greatest value allowed.
        max: u32,
    },
    /// A tuning value outside its range (or not a number).
    BadTuning {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: f64,
        /// Least value allowed.
        min: f64,
        /// Greatest value allowed.
        max: f64,
    },
    /// No policy has this name; the message lists those that exist.
    UnknownPolicy {
        /// The name asked for.
        name: String,
    },
    /// The policy is offline: it needs the accesses to come.
    FutureMissing {
        /// The policy.
        policy: PolicyKind,
    },
    /// A key beyond the table.
    KeyOutOfRange {
        /// The key.
        key: Key,
        /// Keys that the table knows.
        n_keys: u32,
    },
    /// A slot beyond the arena.
    SlotOutOfRange {
        /// The slot.
        slot: SlotId,
        /// Slots in the arena.
        n_slots: u32,
    },
    /// A batch names a key twice.
    DuplicateKey {
        /// The key.
        key: Key,
    },
    /// A batch has more keys than the arena has slots.
    BatchTooLarge {
        /// Keys in the batch.
        batch: usize,
        /// Slots in the arena.
        n_slots: u32,
    },
    /// The key already has a slot.
    AlreadyPresent {
        /// The key.
        key: Key,
        /// Its slot.
        slot: SlotId,
    },
    /// The key has no slot.
    NotPresent {
        /// The key.
        key: Key,
    },
    /// The slot is not in the state that the call needs.
    WrongState {
        /// The slot.
        slot: SlotId,
        /// The state needed.
        expected: SlotState,
        /// The state it is in.
        found: SlotState,
    },
    /// The key is pinned, so it cannot be dropped.
    Pinned {
        /// The key.
        key: Key,
        /// Pins held on it.
        pins: u32,
    },
    /// An unpin without a pin, or of the pin that a load in flight holds.
    NotPinned {
        /// The key.
        key: Key,
    },
    /// Every slot is pinned: nothing may be evicted until a pin is released.
    AllPinned {
        /// Slots in the arena.
        n_slots: u32,
        /// Slots pinned.
        n_pinned: u32,
    },
    /// The policy proposed nothing although a slot could be evicted.
    NoVictim {
        /// Slots in the arena.
        n_slots: u32,
        /// Slots pinned.
        n_pinned: u32,
    },
    /// The policy proposed a key that may not be evicted.
    BadVictim {
        /// The key proposed.
        key: Key,
    },
    /// `validate` found a broken invariant: a fault in the owner, not in the caller's input.
    Broken {
        /// The structure.
        owner: &'static str,
        /// The number of the invariant in the owner's documentation.
        invariant: u32,
        /// A key that shows it, where there is one.
        key: Option<Key>,
    },
    /// Two inputs of a simulation disagree in a dimension.
    ShapeMismatch {
        /// What was measured.
        what: &'static str,
        /// The size needed.
        expected: u64,
        /// The size found.
        found: u64,
    },
    /// Text that is no routing bias; the message says what is accepted.
    BadBias {
        /// The text.
        text: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CapacityBelowBatch { capacity, batch } => write!(
                f,
                "capacity of {capacity} slots is below the batch of {batch} keys that must be \
                 resident together"
            ),
            Self::BadShape {
                name,
                found,
                min,
                max,
            } => write!(f, "{name} is {found}, allowed are {min} to {max}"),
            Self::BadTuning {
                name,
                found,
                min,
                max,
            } => write!(f, "{name} is {found}, allowed are {min} to {max}"),
            Self::UnknownPolicy { name } => {
                write!(f, "unknown policy {name:?}, known are ")?;
                for (i, kind) in PolicyKind::ALL.iter().enumerate() {
                    let comma = if i == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", kind.name())?;
                }
                Ok(())
            }
            Self::FutureMissing { policy } => write!(
                f,
                "policy {} is offline: it needs the log of the accesses to come",
                policy.name()
            ),
            Self::KeyOutOfRange { key, n_keys } => {
                write!(f, "key {key} is out of range, the table has {n_keys} keys")
            }
            Self::SlotOutOfRange { slot, n_slots } => write!(
                f,
                "slot {slot} is out of range, the arena has {n_slots} slots"
            ),
            Self::DuplicateKey { key } => write!(f, "key {key} occurs twice in one batch"),
            Self::BatchTooLarge { batch, n_slots } => write!(
                f,
                "batch of {batch} keys does not fit in {n_slots} slots at once"
            ),
            Self::AlreadyPresent { key, slot } => write!(f, "key {key} already has slot {slot}"),
            Self::NotPresent { key } => write!(f, "key {key} has no slot"),
            Self::WrongState {
                slot,
                expected,
                found,
            } => write!(f, "slot {slot} is {found}, expected {expected}"),
            Self::Pinned { key, pins } => write!(f, "key {key} is pinned {pins} times"),
            Self::NotPinned { key } => write!(f, "key {key} has no pin to release"),
            Self::AllPinned { n_slots, n_pinned } => write!(
                f,
                "no slot can be evicted: {n_pinned} of {n_slots} slots are pinned"
            ),
            Self::NoVictim { n_slots, n_pinned } => write!(
                f,
                "the policy proposed no victim although only {n_pinned} of {n_slots} slots are \
                 pinned"
            ),
            Self::BadVictim { key } => {
                write!(f, "the policy proposed key {key}, which may not be evicted")
            }
            Self::Broken {
                owner,
                invariant,
                key,
            } => {
                write!(f, "invariant {invariant} of {owner} is broken")?;
                match key {
                    Some(key) => write!(f, " at key {key}"),
                    None => Ok(()),
                }
            }
            Self::ShapeMismatch {
                what,
                expected,
                found,
            } => write!(f, "{what} is {found}, expected {expected}"),
            Self::BadBias { text } => write!(
                f,
                "routing bias {text:?} is none of off, rel:<lambda from 0 to 1>, abs:<nats from 0>"
            ),
        }
    }
}

impl core::error::Error for Error {}
