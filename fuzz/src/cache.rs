//! `thalweg-cache`.

/// Runs an operation sequence on a residency table under every policy, compared with a naive model
/// after each operation. Two bytes are one operation.
pub fn cache_ops(data: &[u8]) {
    // Policies are many and each runs all operations.
    thalweg_cache::testing::fuzz_ops(&data[..data.len().min(512)]);
}
