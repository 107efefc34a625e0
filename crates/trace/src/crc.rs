//! CRC-32C (Castagnoli), as in iSCSI (RFC 3720) and ext4.
//!
//! Owns 8 KiB of constant tables. Cost: one table look-up a byte, eight bytes a step.

const POLYNOMIAL: u32 = 0x82F6_3B78;
const TABLES: [[u32; 256]; 8] = tables();

/// A running checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crc32c {
    state: u32,
}

impl Crc32c {
    pub(crate) const fn new() -> Self {
        Self { state: !0 }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let mut crc = self.state;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let low = crc ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
            let [a, b, c, d] = low.to_le_bytes();
            let index = [a, b, c, d, chunk[4], chunk[5], chunk[6], chunk[7]];
            crc = index
                .iter()
                .zip(TABLES.iter().rev())
                .fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)]);
        }
        for &byte in chunks.remainder() {
            crc = (crc >> 8) ^ TABLES[0][usize::from(crc.to_le_bytes()[0] ^ byte)];
        }
        self.state = crc;
    }

    pub(crate) const fn value(self) -> u32 {
        !self.state
    }
}

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0u32; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    // Table i is table 0 followed by i zero bytes.
    let mut i = 1;
    while i < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[i - 1][byte];
            tables[i][byte] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
            byte += 1;
        }
        i += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = Crc32c::new();
        crc.update(bytes);
        crc.value()
    }

    #[test]
    fn published_values_come_out() {
        assert_eq!(crc(b""), 0);
        assert_eq!(crc(b"123456789"), 0xE306_9283);
        // RFC 3720, B.4
        assert_eq!(crc(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc(&[0xFF; 32]), 0x62A8_AB43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc(&rising), 0x46DD_794E);
    }

    #[test]
    fn pieces_give_the_value_of_the_whole() {
        let bytes: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(37)).collect();
        for cut in 0..bytes.len() {
            let mut parts = Crc32c::new();
            parts.update(&bytes[..cut]);
            parts.update(&bytes[cut..]);
            assert_eq!(parts.value(), crc(&bytes));
        }
    }
}
