//! Sizes of the kernels of products: everything that may be tried on a device, in one place.
//!
//! Owns the numbers and what they cost; not the kernels. All but [`Tuning::parts`] leave every bit
//! of a result as it is. Memory: none.

/// Sizes of the kernels of products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Interleaved partial sums of a row, a power of two. Another number adds in another order
    /// (class X1); every kernel has the same one.
    pub parts: u32,
    /// Groups of `parts` invocations of a workgroup that multiplies one vector.
    pub vector_groups: u32,
    /// Most rows of such a group: 1, 2 or 4. Fewer where a matrix has too few rows to keep a device
    /// busy.
    pub vector_rows: u32,
    /// Workgroups below which a group takes fewer rows.
    pub busy_groups: u32,
    /// Elements of the vector in the workgroup's memory, a multiple of 16 `parts`.
    pub staged: u32,
    /// Vectors from which on tiles are used.
    pub tiled_from: u32,
    /// Elements of each row and vector of a tile in the workgroup's memory, a multiple of
    /// 16 `parts`.
    pub tile_depth: u32,
    /// Groups of `parts` invocations along a tile's rows, and along its vectors.
    pub tile_groups: (u32, u32),
    /// Rows and vectors of such a group, in registers.
    pub tile_block: (u32, u32),
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            parts: 16,
            vector_groups: 8,
            vector_rows: 4,
            busy_groups: 512,
            staged: 2048,
            tiled_from: 3,
            tile_depth: 256,
            tile_groups: (2, 4),
            tile_block: (4, 4),
        }
    }
}

impl Tuning {
    /// Rows of a group that multiplies one vector, where there are `n` rows in all.
    pub(crate) fn rows_for(&self, n: usize) -> u32 {
        let busy =
            |rows: &u32| n / (self.vector_groups * rows) as usize >= self.busy_groups as usize;
        let choices = [4, 2].into_iter().filter(|rows| *rows <= self.vector_rows);
        choices.into_iter().find(busy).unwrap_or(1)
    }

    /// Vectors of a tile.
    pub(crate) fn tile_items(&self) -> usize {
        (self.tile_groups.1 * self.tile_block.1) as usize
    }

    /// Rows of a tile.
    pub(crate) fn tile_rows(&self) -> usize {
        (self.tile_groups.0 * self.tile_block.0) as usize
    }

    /// Invocations of the largest workgroup.
    pub(crate) fn threads(&self) -> u32 {
        let tile = self.tile_groups.0 * self.tile_groups.1;
        self.parts * tile.max(self.vector_groups)
    }

    /// Most bytes of workgroup memory that a kernel takes.
    pub(crate) fn workgroup_bytes(&self) -> u32 {
        let (rows, items) = (self.tile_rows() as u32, self.tile_items() as u32);
        let tile = self.parts * self.tile_groups.0 * self.tile_groups.1;
        // Codes and elements; scales, one for four codes at worst; sums; the codebook of IQ3_S.
        let depth = 4 * self.tile_depth;
        let tiled = depth * (rows + items) + depth / 2 * rows + 4 * tile * self.tile_block.1;
        let vector = 4 * self.staged + 4 * self.parts * self.vector_groups * self.vector_rows;
        tiled.max(vector) + 2048
    }

    /// What of it cannot be, if anything.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let whole = |n: u32| n > 0 && n.is_multiple_of(16 * self.parts.max(1));
        let faults = [
            (self.parts.is_power_of_two(), "parts is no power of two"),
            (
                [1, 2, 4].contains(&self.vector_rows),
                "vector_rows is not 1, 2 or 4",
            ),
            (self.vector_groups > 0, "vector_groups is 0"),
            (whole(self.staged), "staged is no multiple of 16 parts"),
            (
                whole(self.tile_depth),
                "tile_depth is no multiple of 16 parts",
            ),
            (
                self.tile_rows() > 0 && self.tile_items() > 0,
                "a tile is empty",
            ),
        ];
        faults
            .into_iter()
            .find(|(holds, _)| !holds)
            .map(|(_, what)| what)
    }
}
