//! SHA-256 digests as values: computed by [`sha256`], written in lower-case hex, compared as bytes.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256Digest(pub [u8; 32]);

/// Text that is not 64 lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 lower-case hex digits, found {0:?}")]
pub struct NotADigest(pub String);

/// The digest of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(bytes).into())
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sha256Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        let bytes = text.as_bytes();
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let refuse = || NotADigest(text.chars().take(80).collect());
        if bytes.len() != 64 {
            return Err(refuse());
        }
        let mut out = [0u8; 32];
        for (slot, pair) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            let (high, low) = (digit(pair[0]), digit(pair[1]));
            *slot = high.zip(low).map(|(h, l)| h << 4 | l).ok_or_else(refuse)?;
        }
        Ok(Self(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of FIPS 180-4 (empty, `abc`).
    #[test]
    fn known_digests() {
        assert_eq!(
            sha256(b"").to_string(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_string(), abc);
        assert_eq!(abc.parse::<Sha256Digest>(), Ok(sha256(b"abc")));
        assert!(abc.to_uppercase().parse::<Sha256Digest>().is_err());
        assert!(abc[1..].parse::<Sha256Digest>().is_err());
    }
}
