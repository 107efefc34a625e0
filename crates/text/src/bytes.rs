//! The GPT-2 byte alphabet: one printable character for each of the 256 bytes.
//!
//! Owns: both directions of the map. Does not own: tokens.
//! Invariant 1: printable ASCII and most of Latin-1 stand for themselves; the other 68 bytes are
//! numbered in order from U+0100 on.
//! Cost: one table look-up a byte; 256 characters of constant data.

/// The character that spells `byte`.
pub(crate) fn char_of(byte: u8) -> char {
    ALPHABET[usize::from(byte)]
}

/// The byte that `c` spells, or `None` if `c` is not in the alphabet.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF => u8::try_from(code)
            .ok()
            .filter(|&byte| stands_for_itself(byte)),
        code @ 0x100..0x144 => {
            let n = usize::try_from(code - 0x100).ok()?;
            MOVED.get(n).copied()
        }
        _ => None,
    }
}

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The bytes that do not stand for themselves, in order.
const MOVED: [u8; 68] = {
    let mut moved = [0; 68];
    let mut n = 0;
    let mut byte = 0_u8;
    loop {
        if !stands_for_itself(byte) {
            moved[n] = byte;
            n += 1;
        }
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    assert!(n == moved.len());
    moved
};

const ALPHABET: [char; 256] = {
    let mut alphabet = ['\0'; 256];
    let mut byte = 0_u8;
    loop {
        alphabet[byte as usize] = byte as char;
        if byte == u8::MAX {
            break;
        }
        byte += 1;
    }
    let mut n = 0;
    while n < MOVED.len() {
        alphabet[MOVED[n] as usize] = match char::from_u32(0x100 + n as u32) {
            Some(c) => c,
            None => panic!("U+0100 to U+0143 are characters"),
        };
        n += 1;
    }
    alphabet
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        for byte in 0..=u8::MAX {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
    }

    #[test]
    fn only_256_characters_spell_a_byte() {
        let n = (0..=0x0010_FFFF)
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .count();
        assert_eq!(n, 256);
    }

    #[test]
    fn known_spellings_hold() {
        let known = [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (0, 'Ā'),
            (0x7F, 'ġ'),
            (0xAD, 'Ń'),
            (b'a', 'a'),
        ];
        for (byte, c) in known {
            assert_eq!(char_of(byte), c, "byte 0x{byte:02X}");
        }
    }
}
