//! `Profile`: which experts are used most, as a file that fills an empty arena.
//!
//! Owns the ranking, its file (STRP, versions 1 and 2; `docs/formats/profile.md`), its remapping
//! after pruning and the report of how well it fits a run. Does not fill anything and pins nothing.
//! Invariants: 1. pairs are distinct and in range; 2. hits a token are finite, at least 0, never
//! rise down the ranking, and are there for all pairs or none. Memory: 4 to 8 bytes a pair and 4 a
//! (layer, expert). Cost: one pass over a file, which is read whole, and only if its length is
//! what its header says. Version 1 is the format of Strata (MIT).

use std::collections::hash_map::RandomState;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crc32c::crc32c;
use thalweg_cache::ExpertKey;

use crate::{DirectFile, Error, Result};

/// The first four bytes of a file.
pub const PROFILE_MAGIC: [u8; 4] = *b"STRP";

/// Bytes before the ranking.
const HEADER_BYTES: usize = 24;
/// Layers, and experts of a layer, that a u16 id can name.
const MAX_IDS: u32 = 1 << 16;
/// In the reverse table: not ranked.
const UNRANKED: u32 = u32::MAX;

/// Experts of a model, hottest first.
///
/// A profile fills an arena that is empty; it holds nothing there. It does not say which model it
/// was made for beyond the shape, so check that with [`expect_shape`](Self::expect_shape).
///
/// ```
/// use thalweg_store::Profile;
/// // 2 layers of 3 experts, by layer; 10 tokens.
/// let counts = [0, 7, 3, 9, 1, 0];
/// let profile = Profile::from_counts(2, 3, 2, &counts, 10)?;
/// let hottest: Vec<_> = profile.warm(2).iter().map(|pair| (pair.layer, pair.expert)).collect();
/// assert_eq!(hottest, [(1, 0), (0, 1)]);
/// assert_eq!(profile.coverage(&counts, 2)?.pooled.share(), Some(16.0 / 20.0));
/// assert_eq!(Profile::parse(&profile.to_bytes())?, profile);
/// # Ok::<(), thalweg_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    n_layer: u32,
    n_expert: u32,
    slots: u32,
    ranking: Vec<ExpertKey>,
    /// As long as `ranking`, if known.
    hits_per_token: Option<Vec<f32>>,
    /// By layer and expert: the place in `ranking` or `UNRANKED`.
    ranks: Vec<u32>,
}

/// Picks of a run, and those among them that the hottest pairs of a profile cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Covered {
    /// Picks.
    pub n_picks: u64,
    /// Picks of covered experts.
    pub n_covered: u64,
}

impl Covered {
    /// The covered share; `None` without picks.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        (self.n_picks > 0).then(|| self.n_covered as f64 / self.n_picks as f64)
    }
}

/// How well a profile fits a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Coverage {
    /// By layer.
    pub layers: Vec<Covered>,
    /// Over all layers.
    pub pooled: Covered,
}

/// What is wrong with a profile.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum ProfileFault {
    /// It does not begin with [`PROFILE_MAGIC`].
    Magic {
        /// The bytes there; fewer in a shorter file are filled up with zeros.
        found: [u8; 4],
    },
    /// A version other than 1 and 2.
    Version {
        /// The version.
        found: u32,
    },
    /// It has more or fewer bytes than its header says, or than a header has.
    Length {
        /// Bytes there should be.
        expected_bytes: u64,
        /// Bytes there are.
        found_bytes: u64,
    },
    /// The checksum at its end does not fit its bytes.
    Checksum {
        /// Of its bytes.
        expected: u32,
        /// In the file.
        found: u32,
    },
    /// No layers or experts, or more than ids can name.
    Shape {
        /// Layers.
        n_layer: u32,
        /// Experts a layer.
        n_expert: u32,
    },
    /// Made for a model of another shape.
    OtherModel {
        /// Layers and experts a layer of the model.
        expected: (u32, u32),
        /// Layers and experts a layer of the profile.
        found: (u32, u32),
    },
    /// A pair that the shape does not have.
    OutOfRange {
        /// Its place in the ranking.
        rank: usize,
        /// The pair.
        pair: ExpertKey,
    },
    /// A pair that is ranked before.
    Duplicate {
        /// Its second place in the ranking.
        rank: usize,
        /// The pair.
        pair: ExpertKey,
    },
    /// The reverse table contradicts the ranking.
    Reverse {
        /// Where in the file.
        offset_bytes: u64,
        /// The rank by the ranking, -1 for none.
        expected: i64,
        /// The rank in the table.
        found: i32,
    },
    /// Hits a token that are negative, not finite, or more than those of the pair before.
    Hits {
        /// The place in the ranking.
        rank: usize,
        /// The hits.
        found: f32,
    },
    /// A list of another length than it should have.
    Count {
        /// The list.
        what: &'static str,
        /// Entries there should be.
        expected: u64,
        /// Entries there are.
        found: u64,
    },
    /// Counts without a token.
    NoTokens,
    /// A keep-map names an expert that is out of range or not above the one before.
    Keep {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: u16,
    },
}

impl Profile {
    /// Ranks experts by how often a run picked them: `counts` by layer, then expert. Equals rank by
    /// layer, then expert. `slots` says which size of arena, in slots, it is meant for.
    ///
    /// All pairs are ranked, also those that were never picked.
    ///
    /// # Errors
    /// [`Error::Profile`] for a shape without experts, counts of another length, or no tokens.
    ///
    /// # Cost
    /// O(pairs * log pairs).
    pub fn from_counts(
        n_layer: u32,
        n_expert: u32,
        slots: u32,
        counts: &[u64],
        n_tokens: u64,
    ) -> Result<Self> {
        let n_pairs = check_shape(n_layer, n_expert).map_err(bad)?;
        check_count("counts", n_pairs, counts.len()).map_err(bad)?;
        if n_tokens == 0 {
            return Err(bad(ProfileFault::NoTokens));
        }
        let mut ranking: Vec<_> = pairs(n_layer, n_expert).zip(counts).collect();
        // Stable, so that pairs of equal counts stay in order.
        ranking.sort_by_key(|&(_, &count)| std::cmp::Reverse(count));
        let hits = |&(_, &count): &(ExpertKey, &u64)| (count as f64 / n_tokens as f64) as f32;
        let hits_per_token = ranking.iter().map(hits).collect();
        let ranking = ranking.into_iter().map(|(pair, _)| pair).collect();
        Self::new(n_layer, n_expert, slots, ranking, Some(hits_per_token))
    }

    /// A profile from a ranking, with or without hits a token.
    ///
    /// # Errors
    /// [`Error::Profile`] for whatever breaks an invariant.
    ///
    /// # Cost
    /// O(pairs); a table of 4 bytes a (layer, expert) of the shape.
    pub fn new(
        n_layer: u32,
        n_expert: u32,
        slots: u32,
        ranking: Vec<ExpertKey>,
        hits_per_token: Option<Vec<f32>>,
    ) -> Result<Self> {
        Self::check(n_layer, n_expert, slots, ranking, hits_per_token).map_err(bad)
    }

    /// Reads the bytes of a file, version 1 or 2.
    ///
    /// # Errors
    /// [`Error::Profile`] with the first thing found wrong: structure, checksum, then contents.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).map_err(bad)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NotAFile`], [`Error::File`]; what [`parse`](Self::parse) finds,
    /// with the path.
    ///
    /// # Cost
    /// Allocates as many bytes as the file has, and only if its header agrees with its length.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read_failed = |source| Error::File {
            path: path.to_path_buf(),
            action: "read",
            source,
        };
        let faulty = |fault| Error::Profile {
            path: Some(path.to_path_buf()),
            fault,
        };
        DirectFile::check_regular(path)?;
        let mut file = File::open(path).map_err(|source| Error::Open {
            path: path.to_path_buf(),
            source,
        })?;
        let metadata = file.metadata().map_err(read_failed)?;
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        let header_bytes = HEADER_BYTES as u64;
        (&mut file)
            .take(header_bytes)
            .read_to_end(&mut bytes)
            .map_err(read_failed)?;
        let header = Header::decode(&bytes).map_err(faulty)?;
        let file_bytes = metadata.len();
        if header.file_bytes() != file_bytes {
            return Err(faulty(ProfileFault::Length {
                expected_bytes: header.file_bytes(),
                found_bytes: file_bytes,
            }));
        }
        // One byte more, so that a file that grew meanwhile shows.
        file.take(file_bytes - header_bytes + 1)
            .read_to_end(&mut bytes)
            .map_err(read_failed)?;
        Self::decode(&bytes).map_err(faulty)
    }

    /// The bytes of a file: version 2, or version 1 if hits a token are not known.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Some(hits) = &self.hits_per_token else {
            return self.to_bytes_v1();
        };
        let mut bytes = self.encode(2);
        bytes.extend(hits.iter().flat_map(|x| x.to_le_bytes()));
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// The bytes of a file of version 1, for other readers of it: hits a token are left out.
    #[must_use]
    pub fn to_bytes_v1(&self) -> Vec<u8> {
        self.encode(1)
    }

    /// Writes [`to_bytes`](Self::to_bytes) to a file in one step: whatever happens, the path has
    /// the old file or the whole new one.
    ///
    /// # Errors
    /// [`Error::File`]; no temporary file is left then.
    ///
    /// # Cost
    /// Waits until the file and its folder are on the disk.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let bytes = self.to_bytes();
        replace(path.as_ref(), |file| file.write_all(&bytes))
    }

    /// Layers of the model.
    #[must_use]
    pub const fn n_layer(&self) -> u32 {
        self.n_layer
    }

    /// Experts of a layer.
    #[must_use]
    pub const fn n_expert(&self) -> u32 {
        self.n_expert
    }

    /// Slots of the arena that it was made for.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// The pairs, hottest first.
    #[must_use]
    pub fn ranking(&self) -> &[ExpertKey] {
        &self.ranking
    }

    /// Expected hits a token of each pair of the ranking, if known.
    #[must_use]
    pub fn hits_per_token(&self) -> Option<&[f32]> {
        self.hits_per_token.as_deref()
    }

    /// The place of a pair in the ranking; `None` if it is not ranked or not of the model.
    #[must_use]
    pub fn rank(&self, pair: ExpertKey) -> Option<u32> {
        let place = place(self.n_layer, self.n_expert, pair)?;
        self.ranks.get(place).copied().filter(|&r| r != UNRANKED)
    }

    /// The pairs that warm an arena of so many slots: the first of the ranking. Read them in file
    /// order and insert them from the last to the first, so that the hottest is the most recent.
    #[must_use]
    pub fn warm(&self, slots: usize) -> &[ExpertKey] {
        &self.ranking[..slots.min(self.ranking.len())]
    }

    /// Checks that it was made for a model of this shape.
    ///
    /// # Errors
    /// [`Error::Profile`] with both shapes.
    pub fn expect_shape(&self, n_layer: u32, n_expert: u32) -> Result<()> {
        let (expected, found) = ((n_layer, n_expert), (self.n_layer, self.n_expert));
        if expected == found {
            return Ok(());
        }
        Err(bad(ProfileFault::OtherModel { expected, found }))
    }

    /// The profile of the pruned model: `keep` lists for each layer the old ids of the experts that
    /// are left, ascending, as many in each layer. Pairs of dropped experts vanish, the others keep
    /// their order and their hits and take their new ids.
    ///
    /// # Errors
    /// [`Error::Profile`] for another number of layers, lists of different or no length, an id out
    /// of range or not above the one before.
    pub fn remap(&self, keep: &[Vec<u16>]) -> Result<Self> {
        check_count("layers of the keep-map", self.n_layer as usize, keep.len()).map_err(bad)?;
        // There is a layer, by the shape.
        let n_kept = keep.first().map_or(0, Vec::len);
        let mut new_ids = vec![None; self.ranks.len()];
        for (layer, kept) in keep.iter().enumerate() {
            check_count("experts kept of a layer", n_kept, kept.len()).map_err(bad)?;
            let of_layer = &mut new_ids[layer * self.n_expert as usize..];
            let mut next = 0;
            for (new_id, &expert) in (0u16..).zip(kept) {
                if u32::from(expert) < next || u32::from(expert) >= self.n_expert {
                    return Err(bad(ProfileFault::Keep { layer, expert }));
                }
                next = u32::from(expert) + 1;
                of_layer[usize::from(expert)] = Some(new_id);
            }
        }
        let new_pair = |pair: &ExpertKey| {
            let place = place(self.n_layer, self.n_expert, *pair)?;
            Some(ExpertKey::new(pair.layer, new_ids[place]?))
        };
        let hits_per_token = self.hits_per_token.as_ref().map(|hits| {
            let both = self.ranking.iter().zip(hits);
            both.filter_map(|(pair, &x)| new_pair(pair).map(|_| x))
                .collect()
        });
        let ranking = self.ranking.iter().filter_map(new_pair).collect();
        // Kept ids ascend below n_expert, so there are at most as many, and the count fits.
        let n_kept = n_kept as u32;
        Self::new(self.n_layer, n_kept, self.slots, ranking, hits_per_token)
    }

    /// Which share of a run's picks the first `slots` pairs cover; `counts` by layer, then expert.
    ///
    /// # Errors
    /// [`Error::Profile`] for counts of another length.
    pub fn coverage(&self, counts: &[u64], slots: usize) -> Result<Coverage> {
        check_count("counts", self.ranks.len(), counts.len()).map_err(bad)?;
        let n_expert = self.n_expert as usize;
        let n_covered = slots.min(self.ranking.len());
        let layers: Vec<_> = counts
            .chunks_exact(n_expert)
            .zip(self.ranks.chunks_exact(n_expert))
            .map(|(counts, ranks)| {
                let mut sum = Covered::default();
                for (&count, &rank) in counts.iter().zip(ranks) {
                    sum.n_picks = sum.n_picks.saturating_add(count);
                    // An unranked pair has a rank beyond any ranking.
                    if (rank as usize) < n_covered {
                        sum.n_covered = sum.n_covered.saturating_add(count);
                    }
                }
                sum
            })
            .collect();
        let pooled = layers
            .iter()
            .fold(Covered::default(), |sum, layer| Covered {
                n_picks: sum.n_picks.saturating_add(layer.n_picks),
                n_covered: sum.n_covered.saturating_add(layer.n_covered),
            });
        Ok(Coverage { layers, pooled })
    }

    fn check(
        n_layer: u32,
        n_expert: u32,
        slots: u32,
        ranking: Vec<ExpertKey>,
        hits_per_token: Option<Vec<f32>>,
    ) -> std::result::Result<Self, ProfileFault> {
        let n_pairs = check_shape(n_layer, n_expert)?;
        if ranking.len() > n_pairs {
            // Some pair must repeat; found before a table of any size is made.
            return Err(ProfileFault::Count {
                what: "pairs at most",
                expected: n_pairs as u64,
                found: ranking.len() as u64,
            });
        }
        let mut ranks = vec![UNRANKED; n_pairs];
        for (rank, &pair) in ranking.iter().enumerate() {
            let place =
                place(n_layer, n_expert, pair).ok_or(ProfileFault::OutOfRange { rank, pair })?;
            if ranks[place] != UNRANKED {
                return Err(ProfileFault::Duplicate { rank, pair });
            }
            // At most 2^32 pairs, and the last of so many has rank 2^32 - 1 = UNRANKED: refused by
            // `check_shape`.
            ranks[place] = rank as u32;
        }
        if let Some(hits) = &hits_per_token {
            check_count("hits per token", ranking.len(), hits.len())?;
            let mut before = f32::MAX;
            for (rank, &found) in hits.iter().enumerate() {
                // A NaN is in no range.
                if !(0.0..=before).contains(&found) {
                    return Err(ProfileFault::Hits { rank, found });
                }
                before = found;
            }
        }
        Ok(Self {
            n_layer,
            n_expert,
            slots,
            ranking,
            hits_per_token,
            ranks,
        })
    }

    fn decode(bytes: &[u8]) -> std::result::Result<Self, ProfileFault> {
        let header = Header::decode(bytes)?;
        let found_bytes = bytes.len() as u64;
        if header.file_bytes() != found_bytes {
            return Err(ProfileFault::Length {
                expected_bytes: header.file_bytes(),
                found_bytes,
            });
        }
        // From here all sizes are those of slices, hence within usize.
        let mut body = bytes;
        if header.version == 2 {
            let (before, crc) = bytes.split_at(bytes.len() - 4);
            let (expected, found) = (crc32c(before), u32_at(crc, 0));
            if expected != found {
                return Err(ProfileFault::Checksum { expected, found });
            }
            body = before;
        }
        let (pairs, rest) = body[HEADER_BYTES..].split_at(4 * header.n_ranked as usize);
        let n_pairs = header.n_layer as usize * header.n_expert as usize;
        let (reverse, hits) = rest.split_at(4 * n_pairs);
        let ranking = pairs
            .chunks_exact(4)
            .map(|b| {
                let id = |i| u16::from_le_bytes([b[i], b[i + 1]]);
                ExpertKey::new(id(0), id(2))
            })
            .collect();
        let hits = (header.version == 2).then(|| {
            let words = hits.chunks_exact(4).map(|b| u32_at(b, 0));
            words.map(f32::from_bits).collect()
        });
        let Header {
            n_layer,
            n_expert,
            slots,
            ..
        } = header;
        let profile = Self::check(n_layer, n_expert, slots, ranking, hits)?;
        for (i, (word, &rank)) in reverse.chunks_exact(4).zip(&profile.ranks).enumerate() {
            if u32_at(word, 0) != rank {
                return Err(ProfileFault::Reverse {
                    offset_bytes: (HEADER_BYTES + pairs.len() + 4 * i) as u64,
                    expected: if rank == UNRANKED {
                        -1
                    } else {
                        i64::from(rank)
                    },
                    found: u32_at(word, 0).cast_signed(),
                });
            }
        }
        Ok(profile)
    }

    /// What both versions share.
    fn encode(&self, version: u32) -> Vec<u8> {
        let words = self.ranking.len() * 2 + self.ranks.len() + 1;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + 4 * words);
        bytes.extend(PROFILE_MAGIC);
        // A ranking has fewer than 2^31 pairs, by `check_shape`.
        let n_ranked = self.ranking.len() as u32;
        for word in [version, self.n_layer, self.n_expert, self.slots, n_ranked] {
            bytes.extend(word.to_le_bytes());
        }
        for pair in &self.ranking {
            bytes.extend(pair.layer.to_le_bytes());
            bytes.extend(pair.expert.to_le_bytes());
        }
        // UNRANKED has the bits of -1.
        bytes.extend(self.ranks.iter().flat_map(|rank| rank.to_le_bytes()));
        bytes
    }
}

impl fmt::Display for ProfileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Magic { found } => write!(
                f,
                "it begins with \"{}\", expected \"{}\"",
                found.escape_ascii(),
                PROFILE_MAGIC.escape_ascii()
            ),
            Self::Version { found } => write!(f, "version is {found}, expected 1 or 2"),
            Self::Length {
                expected_bytes,
                found_bytes,
            } => write!(f, "{found_bytes} bytes, expected {expected_bytes}"),
            Self::Checksum { expected, found } => {
                write!(f, "checksum is {found:#010x}, expected {expected:#010x}")
            }
            Self::Shape { n_layer, n_expert } => write!(
                f,
                "{n_layer} layers of {n_expert} experts, expected 1 to {MAX_IDS} of each and less \
                 than 2^31 pairs"
            ),
            Self::OtherModel { expected, found } => write!(
                f,
                "it was made for {} layers of {} experts, the model has {} of {}; record a new one",
                found.0, found.1, expected.0, expected.1
            ),
            Self::OutOfRange { rank, pair } => {
                write!(f, "pair {pair} at rank {rank} is none of the model")
            }
            Self::Duplicate { rank, pair } => {
                write!(f, "pair {pair} at rank {rank} is ranked before")
            }
            Self::Reverse {
                offset_bytes,
                expected,
                found,
            } => write!(
                f,
                "reverse table at {offset_bytes} says rank {found}, the ranking says {expected}"
            ),
            Self::Hits { rank, found } => write!(
                f,
                "hits per token at rank {rank} are {found}, expected a finite number of at least 0 \
                 that is not above the one before"
            ),
            Self::Count {
                what,
                expected,
                found,
            } => write!(f, "{what}: {found}, expected {expected}"),
            Self::NoTokens => f.write_str("the counts are of no token"),
            Self::Keep { layer, expert } => write!(
                f,
                "keep-map of layer {layer}: expert {expert} is out of range or not above the one \
                 before"
            ),
        }
    }
}

/// The fixed part of a file.
struct Header {
    version: u32,
    n_layer: u32,
    n_expert: u32,
    slots: u32,
    n_ranked: u32,
}

impl Header {
    /// Checks magic, version and shape, in this order; not the length beyond the header's own.
    fn decode(bytes: &[u8]) -> std::result::Result<Self, ProfileFault> {
        let mut found = [0; 4];
        let n = bytes.len().min(4);
        found[..n].copy_from_slice(&bytes[..n]);
        // A beginning of the right bytes is a truncated profile rather than something else.
        if found[..n] != PROFILE_MAGIC[..n] {
            return Err(ProfileFault::Magic { found });
        }
        if bytes.len() < HEADER_BYTES {
            return Err(ProfileFault::Length {
                expected_bytes: HEADER_BYTES as u64,
                found_bytes: bytes.len() as u64,
            });
        }
        let header = Self {
            version: u32_at(bytes, 4),
            n_layer: u32_at(bytes, 8),
            n_expert: u32_at(bytes, 12),
            slots: u32_at(bytes, 16),
            n_ranked: u32_at(bytes, 20),
        };
        if !(1..=2).contains(&header.version) {
            return Err(ProfileFault::Version {
                found: header.version,
            });
        }
        check_shape(header.n_layer, header.n_expert)?;
        Ok(header)
    }

    /// Length of the whole file; below 2^36, by `check_shape`.
    fn file_bytes(&self) -> u64 {
        let n_pairs = u64::from(self.n_layer) * u64::from(self.n_expert);
        let n_ranked = u64::from(self.n_ranked);
        let v1 = HEADER_BYTES as u64 + 4 * (n_ranked + n_pairs);
        if self.version == 1 {
            v1
        } else {
            v1 + 4 * n_ranked + 4
        }
    }
}

/// Number of pairs of a shape, in memory and as non-negative i32 ranks.
fn check_shape(n_layer: u32, n_expert: u32) -> std::result::Result<usize, ProfileFault> {
    let ids = 1..=MAX_IDS;
    let fault = ProfileFault::Shape { n_layer, n_expert };
    if !ids.contains(&n_layer) || !ids.contains(&n_expert) {
        return Err(fault);
    }
    let n_pairs = u64::from(n_layer) * u64::from(n_expert);
    i32::try_from(n_pairs)
        .ok()
        .and_then(|n| usize::try_from(n).ok())
        .ok_or(fault)
}

fn check_count(
    what: &'static str,
    expected: usize,
    found: usize,
) -> std::result::Result<(), ProfileFault> {
    if expected == found {
        return Ok(());
    }
    Err(ProfileFault::Count {
        what,
        expected: expected as u64,
        found: found as u64,
    })
}

/// All pairs of a shape that `check_shape` passed, by layer, then expert.
fn pairs(n_layer: u32, n_expert: u32) -> impl Iterator<Item = ExpertKey> {
    // Ids are below 2^16, by `check_shape`.
    let ids = |n: u32| (0..=u16::MAX).take(n as usize);
    ids(n_layer).flat_map(move |layer| ids(n_expert).map(move |e| ExpertKey::new(layer, e)))
}

/// Where a pair lies in a table by layer and expert; `None` if it is out of range.
fn place(n_layer: u32, n_expert: u32, pair: ExpertKey) -> Option<usize> {
    let (layer, expert) = (u32::from(pair.layer), u32::from(pair.expert));
    (layer < n_layer && expert < n_expert)
        .then(|| layer as usize * n_expert as usize + expert as usize)
}

fn bad(fault: ProfileFault) -> Error {
    Error::Profile { path: None, fault }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Writes a file beside `target`, waits until it is on the disk and moves it there.
fn replace(target: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let fail = |action| {
        move |source| Error::File {
            path: target.to_path_buf(),
            action,
            source,
        }
    };
    let (mut file, mut temporary) = Temporary::create(target).map_err(fail("create a file for"))?;
    write(&mut file).map_err(fail("write"))?;
    file.sync_all().map_err(fail("flush"))?;
    drop(file);
    fs::rename(&temporary.path, target).map_err(fail("replace"))?;
    temporary.renamed = true;
    // Other systems give no handle to flush a folder with.
    #[cfg(unix)]
    {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(fail("flush the folder of"))?;
    }
    Ok(())
}

/// A file that is removed on drop, unless it was renamed.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A new file beside `target`.
    fn create(target: &Path) -> io::Result<(File, Self)> {
        let Some(target_name) = target.file_name() else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        // Process ids repeat (in a container they are always the same), so what a crash left could
        // block the name for ever; a random one cannot.
        let random = RandomState::new().build_hasher().finish();
        let mut name = OsString::from(".");
        name.push(target_name);
        name.push(format!(".{random:016x}.tmp"));
        let path = target.with_file_name(name);
        let file = File::create_new(&path)?;
        let renamed = false;
        Ok((file, Self { path, renamed }))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Nobody is left to tell; the name says what the file is.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2 layers of 4 experts, for 2 slots, three pairs ranked.
    const EXAMPLE: &str = "53545250 01000000 02000000 04000000 02000000 03000000 \
                           01000300 00000200 01000000 \
                           ffffffff ffffffff 01000000 ffffffff \
                           02000000 ffffffff ffffffff 00000000";

    fn example_bytes() -> Vec<u8> {
        let digits: Vec<u8> = EXAMPLE.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|pair| {
                let text = std::str::from_utf8(pair).expect("ASCII");
                u8::from_str_radix(text, 16).expect("hexadecimal")
            })
            .collect()
    }

    fn key(layer: u16, expert: u16) -> ExpertKey {
        ExpertKey::new(layer, expert)
    }

    fn example() -> Profile {
        let ranking = vec![key(1, 3), key(0, 2), key(1, 0)];
        Profile::new(2, 4, 2, ranking, None).expect("well formed")
    }

    fn with_hits() -> Profile {
        let hits = Some(vec![0.75, 0.5, 0.5]);
        Profile::new(2, 4, 2, example().ranking, hits).expect("well formed")
    }

    fn fault(result: Result<Profile>) -> ProfileFault {
        match result {
            Err(Error::Profile { fault, .. }) => fault,
            other => panic!("expected a fault of the profile, got {other:?}"),
        }
    }

    /// Puts the checksum at the end in order again.
    fn seal(bytes: &mut [u8]) {
        let end = bytes.len() - 4;
        let crc = crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn the_documented_68_bytes_are_read_and_written() {
        let bytes = example_bytes();
        assert_eq!(bytes.len(), 68);
        let profile = Profile::parse(&bytes).expect("whole");
        assert_eq!(profile, example());
        assert_eq!(profile.to_bytes(), bytes);
        assert_eq!(profile.to_bytes_v1(), bytes);
        assert_eq!(
            (profile.n_layer(), profile.n_expert(), profile.slots()),
            (2, 4, 2)
        );
        assert_eq!(profile.rank(key(0, 2)), Some(1));
        assert_eq!(profile.rank(key(0, 3)), None);
        assert_eq!(profile.rank(key(2, 0)), None);
        assert_eq!(profile.warm(2), [key(1, 3), key(0, 2)]);
        assert_eq!(profile.warm(99).len(), 3);
    }

    #[test]
    fn version_2_appends_hits_and_a_checksum() {
        let bytes = with_hits().to_bytes();
        assert_eq!(bytes.len(), 68 + 3 * 4 + 4);
        let mut expected = example_bytes();
        expected[4] = 2;
        for hits in [0.75f32, 0.5, 0.5] {
            expected.extend(hits.to_le_bytes());
        }
        assert_eq!(bytes[..80], expected[..]);
        assert_eq!(Profile::parse(&bytes).expect("whole"), with_hits());
        // Version 1 of the same drops them.
        assert_eq!(with_hits().to_bytes_v1(), example_bytes());
    }

    #[test]
    fn the_checksum_is_the_published_one() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        // RFC 3720, B.4
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
    }

    #[test]
    fn the_full_profile_of_48_layers_of_512_experts_has_196632_bytes() {
        let counts = vec![1; 48 * 512];
        let profile = Profile::from_counts(48, 512, 2441, &counts, 1).expect("well formed");
        assert_eq!(profile.to_bytes_v1().len(), 196_632);
        assert_eq!(profile.ranking().len(), 24_576);
    }

    #[test]
    fn a_file_cut_or_extended_anywhere_is_refused() {
        for bytes in [example_bytes(), with_hits().to_bytes()] {
            for len in 0..bytes.len() {
                let found = fault(Profile::parse(&bytes[..len]));
                assert!(
                    matches!(found, ProfileFault::Length { .. }),
                    "{len}: {found}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(matches!(
                fault(Profile::parse(&longer)),
                ProfileFault::Length { .. }
            ));
        }
    }

    #[test]
    fn any_flipped_bit_of_version_2_is_found() {
        let bytes = with_hits().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Profile::parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn each_check_names_what_it_found() {
        let broken = |at: usize, value: &[u8]| {
            let mut bytes = example_bytes();
            bytes[at..at + value.len()].copy_from_slice(value);
            fault(Profile::parse(&bytes))
        };
        assert_eq!(broken(0, b"GGUF"), ProfileFault::Magic { found: *b"GGUF" });
        assert_eq!(broken(4, &[3]), ProfileFault::Version { found: 3 });
        // Big-endian version 1.
        assert_eq!(
            broken(4, &[0, 0, 0, 1]),
            ProfileFault::Version { found: 1 << 24 }
        );
        assert!(matches!(
            broken(8, &[0]),
            ProfileFault::Shape { n_layer: 0, .. }
        ));
        let huge = [0xFF; 4];
        assert!(matches!(broken(12, &huge), ProfileFault::Shape { .. }));
        assert!(matches!(broken(20, &huge), ProfileFault::Length { .. }));
        let pair = key(1, 4);
        assert_eq!(broken(26, &[4]), ProfileFault::OutOfRange { rank: 0, pair });
        let pair = key(2, 2);
        assert_eq!(broken(28, &[2]), ProfileFault::OutOfRange { rank: 1, pair });
        let pair = key(1, 3);
        assert_eq!(
            broken(28, &[1, 0, 3, 0]),
            ProfileFault::Duplicate { rank: 1, pair }
        );
        let reverse = |offset_bytes, expected, found| ProfileFault::Reverse {
            offset_bytes,
            expected,
            found,
        };
        assert_eq!(broken(36, &[0, 0, 0, 0]), reverse(36, -1, 0));
        assert_eq!(broken(44, &huge), reverse(44, 1, -1));
        assert_eq!(broken(64, &[2]), reverse(64, 0, 2));
    }

    #[test]
    fn hits_must_be_finite_and_must_not_rise() {
        for (rank, found) in [
            (0, f32::NAN),
            (0, f32::INFINITY),
            (1, 0.76),
            (2, -0.5),
            (2, f32::NAN),
            (2, f32::NEG_INFINITY),
        ] {
            let mut bytes = with_hits().to_bytes();
            let at = 68 + 4 * rank;
            bytes[at..at + 4].copy_from_slice(&found.to_le_bytes());
            seal(&mut bytes);
            let fault = fault(Profile::parse(&bytes));
            assert!(
                matches!(fault, ProfileFault::Hits { rank: r, .. } if r == rank),
                "{fault}"
            );
        }
        let short = Profile::new(2, 4, 2, example().ranking, Some(vec![1.0]));
        assert!(matches!(fault(short), ProfileFault::Count { .. }));
    }

    #[test]
    fn an_expert_that_the_model_does_not_have_is_refused() {
        let fault = fault(Profile::new(48, 512, 1, vec![key(0, 600)], None));
        let text = fault.to_string();
        assert_eq!(text, "pair 0:600 at rank 0 is none of the model");
        let error = example().expect_shape(48, 512).expect_err("another shape");
        let text = error.to_string();
        assert!(
            text.contains("2 layers of 4 experts, the model has 48 of 512"),
            "{text}"
        );
        example().expect_shape(2, 4).expect("this shape");
    }

    #[test]
    fn counts_rank_by_hits_then_layer_then_expert() {
        let counts = [5, 9, 5, 0, 9, 5];
        let profile = Profile::from_counts(2, 3, 4, &counts, 20).expect("well formed");
        let expected = [
            key(0, 1),
            key(1, 1),
            key(0, 0),
            key(0, 2),
            key(1, 2),
            key(1, 0),
        ];
        assert_eq!(profile.ranking(), expected);
        let hits = [0.45, 0.45, 0.25, 0.25, 0.25, 0.0];
        assert_eq!(profile.hits_per_token(), Some(&hits[..]));
        assert_eq!(
            fault(Profile::from_counts(2, 3, 4, &counts, 0)),
            ProfileFault::NoTokens
        );
        assert!(matches!(
            fault(Profile::from_counts(2, 3, 4, &counts[1..], 1)),
            ProfileFault::Count {
                expected: 6,
                found: 5,
                ..
            }
        ));
    }

    #[test]
    fn a_keep_map_drops_and_renumbers() {
        let pruned = with_hits().remap(&[vec![1, 2], vec![0, 1]]).expect("kept");
        // (1, 3) is dropped, (0, 2) becomes (0, 1), (1, 0) stays.
        assert_eq!(pruned.ranking(), [key(0, 1), key(1, 0)]);
        assert_eq!(pruned.hits_per_token(), Some(&[0.5, 0.5][..]));
        assert_eq!(
            (pruned.n_layer(), pruned.n_expert(), pruned.slots()),
            (2, 2, 2)
        );
        let all = vec![0, 1, 2, 3];
        assert_eq!(
            with_hits().remap(&[all.clone(), all]).expect("kept"),
            with_hits()
        );
        // Twice is once with the lists composed.
        let twice = pruned.remap(&[vec![1], vec![0]]).expect("kept");
        assert_eq!(twice, with_hits().remap(&[vec![2], vec![0]]).expect("kept"));
    }

    #[test]
    fn keep_maps_of_another_model_are_refused() {
        let remap = |keep: &[Vec<u16>]| fault(with_hits().remap(keep));
        assert!(matches!(remap(&[vec![0]]), ProfileFault::Count { .. }));
        assert!(matches!(
            remap(&[vec![0], vec![0, 1]]),
            ProfileFault::Count {
                expected: 1,
                found: 2,
                ..
            }
        ));
        assert!(matches!(
            remap(&[vec![], vec![]]),
            ProfileFault::Shape { .. }
        ));
        for (kept, expert) in [(vec![2, 1], 1), (vec![1, 1], 1), (vec![0, 4], 4)] {
            assert_eq!(
                remap(&[vec![0, 1], kept]),
                ProfileFault::Keep { layer: 1, expert }
            );
        }
    }

    #[test]
    fn coverage_is_counted_by_layer_and_pooled() {
        let counts = [1, 2, 3, 4, 10, 20, 30, 40];
        let cover = |slots| {
            let coverage = example().coverage(&counts, slots).expect("fits");
            let of = |c: &Covered| (c.n_covered, c.n_picks);
            let layers: Vec<_> = coverage.layers.iter().map(of).collect();
            (layers, of(&coverage.pooled))
        };
        assert_eq!(cover(0), (vec![(0, 10), (0, 100)], (0, 110)));
        assert_eq!(cover(1), (vec![(0, 10), (40, 100)], (40, 110)));
        assert_eq!(cover(2), (vec![(3, 10), (40, 100)], (43, 110)));
        assert_eq!(cover(usize::MAX), (vec![(3, 10), (50, 100)], (53, 110)));
        assert_eq!(Covered::default().share(), None);
        assert!(example().coverage(&counts[1..], 1).is_err());
    }

    #[test]
    fn a_saved_file_is_read_again_and_replaces_the_old_one() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("model.strp");
        example().save(&path).expect("writable");
        assert_eq!(Profile::open(&path).expect("whole"), example());
        with_hits().save(&path).expect("writable");
        assert_eq!(Profile::open(&path).expect("whole"), with_hits());
        assert_eq!(names(folder.path()), ["model.strp"]);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_no_other() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("model.strp");
        example().save(&path).expect("writable");
        // A disk that is full after some bytes.
        let error = replace(&path, |file| {
            file.write_all(b"STRP")?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .expect_err("full");
        assert!(matches!(
            error,
            Error::File {
                action: "write",
                ..
            }
        ));
        assert_eq!(Profile::open(&path).expect("whole"), example());
        assert_eq!(names(folder.path()), ["model.strp"]);
        // A folder in the way of the rename.
        let blocked = folder.path().join("folder");
        fs::create_dir(&blocked).expect("writable");
        let error = example().save(&blocked).expect_err("a folder");
        assert!(matches!(
            error,
            Error::File {
                action: "replace",
                ..
            }
        ));
        assert_eq!(names(folder.path()), ["folder", "model.strp"]);
        assert!(example().save(folder.path().join("no/model.strp")).is_err());
    }

    #[test]
    fn a_file_that_is_no_profile_is_refused_with_its_path() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("model.strp");
        let text = || Profile::open(&path).expect_err("unusable").to_string();
        assert!(text().contains("model.strp"));
        fs::write(&path, &example_bytes()[..65]).expect("writable");
        assert!(text().ends_with("65 bytes, expected 68") && text().contains("model.strp"));
        fs::write(&path, b"GGUF").expect("writable");
        assert!(text().contains("\"GGUF\", expected \"STRP\""));
        fs::write(&path, b"{}\n").expect("writable");
        assert!(
            text().contains(r#""{}\n\x00", expected "STRP""#),
            "{}",
            text()
        );
        // A header that promises 34 GB allocates nothing.
        let mut bytes = example_bytes();
        bytes[8..16].copy_from_slice(&[0xFF, 0xFF, 0, 0, 0xFF, 0x7F, 0, 0]);
        fs::write(&path, &bytes).expect("writable");
        assert!(text().contains("68 bytes, expected "));
        assert!(matches!(
            Profile::open(folder.path()),
            Err(Error::NotAFile { .. } | Error::Open { .. })
        ));
    }

    prop_compose! {
        fn profiles()(
            n_layer in 1u32..5,
            n_expert in 1u32..9,
        )(
            n_layer in Just(n_layer),
            n_expert in Just(n_expert),
            counts in proptest::collection::vec(0u64..20, (n_layer * n_expert) as usize),
            n_ranked in 0..=(n_layer * n_expert) as usize,
            slots in 0u32..50,
            hits in any::<bool>(),
        ) -> Profile {
            let full = Profile::from_counts(n_layer, n_expert, slots, &counts, 20)
                .expect("well formed");
            let weights = full.hits_per_token().map(|w| w[..n_ranked].to_vec());
            let ranking = full.ranking()[..n_ranked].to_vec();
            Profile::new(n_layer, n_expert, slots, ranking, weights.filter(|_| hits))
                .expect("well formed")
        }
    }

    proptest! {
        #[test]
        fn bytes_carry_the_whole_profile(profile in profiles()) {
            let bytes = profile.to_bytes();
            prop_assert_eq!(&Profile::parse(&bytes).expect("own bytes"), &profile);
            let v1 = Profile::parse(&profile.to_bytes_v1()).expect("own bytes");
            prop_assert_eq!(v1.ranking(), profile.ranking());
        }

        #[test]
        fn what_is_read_from_any_bytes_is_written_back_the_same(
            profile in profiles(),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            sealed in any::<bool>(),
        ) {
            let mut bytes = profile.to_bytes();
            for (at, value) in edits {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if sealed && bytes[4] == 2 {
                seal(&mut bytes);
            }
            if let Ok(read) = Profile::parse(&bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
            }
        }

        #[test]
        fn pruning_keeps_the_order_of_what_is_left(profile in profiles(), seed in any::<u64>()) {
            let n_kept = 1 + seed as usize % profile.n_expert() as usize;
            let keep: Vec<Vec<u16>> = (0..profile.n_layer())
                .map(|layer| {
                    let n_expert = profile.n_expert() as usize;
                    let mut ids: Vec<_> = (0..=u16::MAX).take(n_expert).collect();
                    let turn = (seed >> (layer % 60)) as usize % ids.len();
                    ids.rotate_left(turn);
                    ids.truncate(n_kept);
                    ids.sort_unstable();
                    ids
                })
                .collect();
            let pruned = profile.remap(&keep).expect("kept");
            let old: Vec<_> = pruned
                .ranking()
                .iter()
                .map(|p| key(p.layer, keep[usize::from(p.layer)][usize::from(p.expert)]))
                .collect();
            let left: Vec<_> = profile
                .ranking()
                .iter()
                .copied()
                .filter(|p| keep[usize::from(p.layer)].contains(&p.expert))
                .collect();
            prop_assert_eq!(old, left);
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(folder)
            .expect("readable")
            .map(|entry| {
                entry
                    .expect("readable")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort_unstable();
        names
    }
}
