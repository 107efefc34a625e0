//! A small set of files with known content, and stores over it.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use thalweg_cache::{PolicyKind, SplitMix64};
use thalweg_store::{
    Error, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet, Lease,
    PreadBackend, ReadBackend, Stream,
};

/// Experts and part lengths of each layer. Slots of 4096, 12288, 8192 and 4096 bytes.
pub(crate) const LAYERS: [(usize, &[u64]); 4] = [
    (12, &[300, 300, 200]),
    (12, &[3000, 3000, 2500]),
    (9, &[5000, 1]),
    (12, &[64, 64, 64]),
];
/// Bytes of an expert of each layer.
pub(crate) const EXPERT_BYTES: [u64; 4] = [800, 8500, 5001, 192];
/// Experts that a token uses in each layer.
pub(crate) const K: usize = 3;

pub(crate) struct Fixture {
    /// Removes the files when it goes.
    _dir: TempDir,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) bytes: Vec<Vec<u8>>,
    parts: Vec<Vec<ExpertPartLayout>>,
}

impl Fixture {
    /// Two files. Parts lie apart like tensors do; the last of each layer is in the second file,
    /// and the experts of layer 2 have bytes between them that belong to nobody.
    pub(crate) fn new() -> Self {
        let mut rng = SplitMix64::new(7);
        let mut bytes: Vec<Vec<u8>> = vec![vec![0xEE; 77], vec![0xEE; 5]];
        let mut parts = Vec::new();
        for (layer, (n_expert, lens)) in LAYERS.iter().enumerate() {
            let mut of_layer = Vec::new();
            for (p, &len_bytes) in lens.iter().enumerate() {
                let file = usize::from(p + 1 == lens.len());
                let stride_bytes = len_bytes + if layer == 2 { 13 } else { 0 };
                let offset_bytes = bytes[file].len() as u64;
                for _ in 0..*n_expert {
                    bytes[file].extend((0..stride_bytes).map(|_| rng.below(251) as u8));
                }
                of_layer.push(ExpertPartLayout {
                    file,
                    offset_bytes,
                    stride_bytes,
                    len_bytes,
                });
            }
            parts.push(of_layer);
        }
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let paths: Vec<_> = (0..bytes.len())
            .map(|i| dir.path().join(format!("{i}.bin")))
            .collect();
        for (path, bytes) in paths.iter().zip(&bytes) {
            fs::write(path, bytes).expect("a writable folder");
        }
        Self {
            _dir: dir,
            paths,
            bytes,
            parts,
        }
    }

    pub(crate) fn layout(&self) -> ExpertLayout {
        let mut layout = ExpertLayout::new();
        for ((n_expert, _), parts) in LAYERS.iter().zip(&self.parts) {
            layout
                .push_layer(*n_expert, parts)
                .expect("a possible layer");
        }
        layout
    }

    pub(crate) fn files(&self) -> FileSet {
        FileSet::open(&self.paths).expect("readable files")
    }

    /// What the file holds of a part.
    pub(crate) fn part(&self, layer: usize, expert: u16, part: usize) -> &[u8] {
        let p = self.parts[layer][part];
        let start = p.offset_bytes + p.stride_bytes * u64::from(expert);
        &self.bytes[p.file][start as usize..][..p.len_bytes as usize]
    }

    pub(crate) fn try_store(&self, slots: usize) -> Result<ExpertStore, Error> {
        self.store_with(slots, PolicyKind::Lru, |files| {
            Box::new(PreadBackend::new(files))
        })
    }

    pub(crate) fn store(&self, slots: usize) -> ExpertStore {
        self.try_store(slots).expect("enough slots")
    }

    /// A store with `slots` slots in each layer, or as many as the layer has experts.
    pub(crate) fn store_with(
        &self,
        slots: usize,
        policy: PolicyKind,
        backend: impl FnOnce(FileSet) -> Box<dyn ReadBackend>,
    ) -> Result<ExpertStore, Error> {
        self.transit_store(slots, 0, policy, backend)
    }

    /// The same with transit slots.
    pub(crate) fn transit_store(
        &self,
        slots: usize,
        transit: usize,
        policy: PolicyKind,
        backend: impl FnOnce(FileSet) -> Box<dyn ReadBackend>,
    ) -> Result<ExpertStore, Error> {
        let files = self.files();
        let config = ExpertStoreConfig {
            slots: LAYERS.iter().map(|(n, _)| slots.min(*n)).collect(),
            transit,
            policy,
            ..ExpertStoreConfig::uniform(LAYERS.len(), slots, K)
        };
        ExpertStore::new(files.clone(), backend(files), self.layout(), config)
    }

    /// Checks the parts of the experts of a lease that are here, and that the others have none;
    /// returns how many are here.
    pub(crate) fn check_open(&self, lease: &Lease<'_>, layer: usize, picks: &[u16]) -> usize {
        assert_eq!(lease.n(), picks.len());
        for (i, &expert) in picks.iter().enumerate() {
            for (p, bytes) in lease.parts(i).enumerate() {
                match lease.is_here(i) {
                    true => assert_eq!(bytes, self.part(layer, expert, p), "{layer}:{expert}"),
                    false => assert!(lease.was_miss(i) && bytes.is_empty(), "{layer}:{expert}"),
                }
            }
        }
        let n_here = (0..picks.len()).filter(|i| lease.is_here(*i)).count();
        assert_eq!(lease.is_complete(), n_here == picks.len());
        n_here
    }

    /// Checks the batch that a stream has handed out; returns its experts.
    pub(crate) fn check_batch(&self, stream: &Stream<'_>, layer: usize) -> Vec<u16> {
        let n_parts = LAYERS[layer].1.len();
        let check = |i| {
            let expert = stream.expert(i).expect("an expert of the batch");
            for p in 0..n_parts {
                let expected = self.part(layer, expert, p);
                assert_eq!(stream.part(i, p), expected, "{layer}:{expert} part {p}");
            }
            assert!(stream.part(i, n_parts).is_empty());
            expert
        };
        let n = stream.n();
        assert!(stream.expert(n).is_none() && stream.part(n, 0).is_empty());
        (0..n).map(check).collect()
    }

    /// Everything that a stream brings, in the order in which it comes.
    pub(crate) fn drain(&self, stream: &mut Stream<'_>, layer: usize) -> Vec<u16> {
        let mut seen = Vec::new();
        while stream.next_batch().expect("readable files") {
            let batch = self.check_batch(stream, layer);
            assert!(!batch.is_empty());
            seen.extend(batch);
        }
        assert_eq!(stream.n(), 0);
        seen
    }

    /// Checks every byte of a lease against the file.
    pub(crate) fn check(&self, lease: &Lease<'_>, layer: usize, picks: &[u16]) {
        assert_eq!(lease.n(), picks.len());
        assert_eq!(lease.n_parts(), LAYERS[layer].1.len());
        for (i, &expert) in picks.iter().enumerate() {
            assert_eq!(lease.key(i).map(|key| key.expert), Some(expert));
            for (p, bytes) in lease.parts(i).enumerate() {
                assert_eq!(
                    bytes,
                    self.part(layer, expert, p),
                    "expert {layer}:{expert} part {p}"
                );
                assert_eq!(bytes.as_ptr().addr() % 64, 0);
            }
        }
    }
}

/// The residents of a layer.
pub(crate) fn residents(store: &ExpertStore, layer: usize) -> Vec<u16> {
    let experts = 0..LAYERS[layer].0 as u16;
    experts.filter(|e| store.is_resident(layer, *e)).collect()
}

/// Both checks that a store has for its invariants.
pub(crate) fn validate(store: &ExpertStore) {
    store.validate().unwrap();
    store.validate_contents().unwrap();
}

/// The error and all its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
