//! A small set of files with known content, and stores over it.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use thalweg_cache::{PolicyKind, SplitMix64};
use thalweg_store::{
    Error, ExpertLayout, ExpertPartLayout, ExpertStore, ExpertStoreConfig, FileSet, Lease,
    PreadBackend, ReadBackend,
};

/// Experts and part lengths of each layer. Slots of 4096, 12288, 8192 and 4096 bytes.
pub(crate) const LAYERS: [(usize, &[u64]); 4] = [
    (12, &[300, 300, 200]),
    (12, &[3000, 3000, 2500]),
    (9, &[5000, 1]),
    (12, &[64, 64, 64]),
];
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
        let files = self.files();
        let config = ExpertStoreConfig {
            slots: LAYERS.iter().map(|(n, _)| slots.min(*n)).collect(),
            policy,
            ..ExpertStoreConfig::uniform(LAYERS.len(), slots, K)
        };
        ExpertStore::new(files.clone(), backend(files), self.layout(), config)
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

/// The error and all its causes on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |e| e.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
