//! A strict reader of the safetensors format.
//!
//! Format: an 8-byte little-endian header length, a JSON object (name → dtype, shape, data_offsets, plus
//! `__metadata__`), then the data, which the offsets must cover exactly, in whatever order, without gap or overlap.
//! Owns the open file. Everything is checked before memory of that size is allocated, and tensor values are checked to be
//! finite. They are read, so that a file that shrinks under us gives an error and no signal; only a large table may stay
//! in the file ([`SafeTensors::map_values`]), and whoever loads one holds the file's lease for as long.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::what_it_looks_like;
use crate::error::{OwnedError, Result};
use crate::kernel::buffer::MappedValues;
use crate::kernel::lanes::LANES;
use crate::kernel::memory::Mapping;

/// The longest header that is read. A tensor takes about 120 bytes of it.
const HEADER_LIMIT: u64 = 8 << 20;
/// The most dimensions of a tensor.
const RANK_LIMIT: usize = 8;
/// Values converted at once while a tensor is read.
const CHUNK_VALUES: usize = 64 * 1024;

/// How a float tensor is stored. Arithmetic is f32 whichever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
}

impl FloatType {
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// One tensor of the header, checked against the file.
#[derive(Clone, Debug)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

/// An open safetensors file whose header was found sound.
pub struct SafeTensors {
    path: PathBuf,
    file: File,
    data_start: u64,
    entries: HashMap<String, Entry>,
    bytes_in_all: u64,
    /// The whole file, once a table was asked for.
    mapping: Option<Arc<Mapping>>,
    /// What was read last, kept for the next read.
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl SafeTensors {
    /// Opens a file and checks its header against its length.
    ///
    /// # Errors
    /// [`OwnedError::Read`], [`OwnedError::File`] or [`OwnedError::Tensor`].
    pub fn open(path: &Path) -> Result<Self> {
        let read = |source| OwnedError::Read {
            path: path.to_owned(),
            source,
        };
        let problem = |problem| OwnedError::File {
            path: path.to_owned(),
            problem,
        };
        let mut file = File::open(path).map_err(read)?;
        let file_len = file.metadata().map_err(read)?.len();
        let mut start = Vec::with_capacity(64);
        (&mut file).take(64).read_to_end(&mut start).map_err(read)?;
        let impostor = what_it_looks_like(&start)
            .map(|what| format!("; it looks like {what}: download the file again"))
            .unwrap_or_default();
        let Some(&length) = start.first_chunk::<8>() else {
            return Err(problem(format!(
                "{file_len} bytes long, expected at least 8 for the header's length{impostor}"
            )));
        };
        let header_len = u64::from_le_bytes(length);
        if header_len > HEADER_LIMIT {
            return Err(problem(format!(
                "header length {header_len}, expected at most {HEADER_LIMIT} bytes{impostor}"
            )));
        }
        let data_start = header_len + 8;
        if data_start > file_len {
            return Err(problem(format!(
                "header length {header_len}, but the file has {file_len} bytes; it is cut short{impostor}"
            )));
        }
        file.seek(SeekFrom::Start(8)).map_err(read)?;
        let mut header = Vec::new();
        (&mut file).take(header_len).read_to_end(&mut header).map_err(read)?;
        if header.first() != Some(&b'{') {
            return Err(problem(
                "the header does not begin with '{'; expected a JSON object".to_owned(),
            ));
        }
        let Header(tensors) = serde_json::from_slice(&header).map_err(|error| problem(format!("header: {error}")))?;

        let mut entries = HashMap::with_capacity(tensors.len());
        for (name, raw) in tensors {
            let entry = check_entry(&raw).map_err(|problem| OwnedError::Tensor {
                path: path.to_owned(),
                tensor: name.clone(),
                problem,
            })?;
            entries.insert(name, entry);
        }
        check_cover(path, &entries, file_len - data_start)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            data_start,
            entries,
            bytes_in_all: file_len,
            mapping: None,
            values: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// The file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a tensor of that name exists.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Every tensor's name, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.entries.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Checks that a tensor exists, is of a float type and has exactly this shape.
    ///
    /// # Errors
    /// [`OwnedError::Tensor`] naming the tensor and both shapes or types.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<()> {
        self.float_entry(name, shape).map(drop)
    }

    /// Reads some rows of a float tensor as f32 (rows of the last dimension) and hands them out in whole rows, several
    /// at once: the number of the first, counted from 0 for the first that was asked for, and the values.
    ///
    /// # Errors
    /// As [`Self::require`]; a value that is not finite; a read error.
    ///
    /// # Panics
    /// When the rows are not all of the tensor's (a bug of the caller, not of a file).
    pub fn read_rows(
        &mut self,
        name: &str,
        shape: &[usize],
        some: Range<usize>,
        mut rows: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let (begin, float) = self.float_entry(name, shape)?;
        let width = shape.last().copied().unwrap_or(1).max(1);
        assert!(some.start <= some.end && some.end <= shape.iter().product::<usize>() / width);
        let begin = begin + (some.start * width * float.bytes()) as u64;
        let read = |source| OwnedError::Read {
            path: self.path.clone(),
            source,
        };
        self.file.seek(SeekFrom::Start(self.data_start + begin)).map_err(read)?;
        // Whole panels of a layer, where they are that short.
        let at_once = match CHUNK_VALUES / width {
            0 => 1,
            few @ 1..LANES => few,
            many => many / LANES * LANES,
        };
        for first in (0..some.len()).step_by(at_once) {
            let count = at_once.min(some.len() - first) * width;
            if self.values.len() < count {
                self.values.resize(count, 0.0);
            }
            let values = &mut self.values[..count];
            if float == FloatType::F32 {
                self.file.read_exact(bytes_of(values)).map_err(read)?;
                let native = |value: &mut f32| *value = f32::from_bits(u32::from_le(value.to_bits()));
                values.iter_mut().for_each(native);
            } else {
                self.bytes.resize(count * float.bytes(), 0);
                self.file.read_exact(&mut self.bytes).map_err(read)?;
                widen(float, &self.bytes, values);
            }
            self.check_finite(name, &self.values[..count], (some.start + first) * width)?;
            rows(first, &self.values[..count]);
        }
        Ok(())
    }

    /// A whole float tensor where it lies in the file, if it is stored as this machine reads it.
    ///
    /// # Errors
    /// As [`Self::require`]; a value that is not finite.
    pub fn map_values(&mut self, name: &str, shape: &[usize]) -> Result<Option<MappedValues>> {
        let (begin, float) = self.float_entry(name, shape)?;
        if float != FloatType::F32 {
            return Ok(None);
        }
        if self.mapping.is_none() {
            let bytes = usize::try_from(self.bytes_in_all).ok();
            self.mapping = bytes.and_then(|bytes| Mapping::of(&self.file, bytes)).map(Arc::new);
        }
        let Some(mapping) = &self.mapping else { return Ok(None) };
        let byte = usize::try_from(self.data_start + begin).ok();
        let Some(mapped) = byte.and_then(|byte| MappedValues::of(mapping, byte, shape.iter().product())) else {
            return Ok(None);
        };
        self.check_finite(name, mapped.values(), 0)?;
        mapping.forget_pages();
        Ok(Some(mapped))
    }

    /// Refuses an infinity or a NaN; the first of `values` is the tensor's value `first`.
    fn check_finite(&self, name: &str, values: &[f32], first: usize) -> Result<()> {
        first_not_finite(values).map_or(Ok(()), |at| {
            Err(OwnedError::Tensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
                problem: format!(
                    "value {} is {}, expected finite numbers only; the file is damaged",
                    first + at,
                    values[at]
                ),
            })
        })
    }

    fn float_entry(&self, name: &str, shape: &[usize]) -> Result<(u64, FloatType)> {
        let problem = |problem| OwnedError::Tensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
            problem,
        };
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| problem(format!("missing; the config demands it with shape {shape:?}")))?;
        let float = match entry.dtype.as_str() {
            "F32" => FloatType::F32,
            "F16" => FloatType::F16,
            "BF16" => FloatType::Bf16,
            other => return Err(problem(format!("dtype {other}, expected F32, F16 or BF16"))),
        };
        let same = entry.shape.len() == shape.len()
            && entry
                .shape
                .iter()
                .zip(shape)
                .all(|(&found, &expected)| found == expected as u64);
        if !same {
            return Err(problem(format!("shape {:?}, expected {shape:?}", entry.shape)));
        }
        Ok((entry.begin, float))
    }
}

/// The memory of values, to be filled with what a file has.
const fn bytes_of(values: &mut [f32]) -> &mut [u8] {
    // SAFETY: the same bytes, exclusively borrowed; every pattern of them is an f32.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Where the first infinity or NaN is. Without a branch for each value: a file has millions, and none of these.
fn first_not_finite(values: &[f32]) -> Option<usize> {
    const INFINITY: i32 = f32::INFINITY.to_bits().cast_signed();
    let magnitude = |value: &f32| (value.to_bits() & !(1 << 31)).cast_signed();
    let largest = values.iter().fold(0, |largest, value| magnitude(value).max(largest));
    if largest < INFINITY {
        return None;
    }
    values.iter().position(|value| !value.is_finite())
}

/// Both halves-sized types as f32.
fn widen(float: FloatType, bytes: &[u8], values: &mut [f32]) {
    match float {
        FloatType::F32 => unreachable!("read in place"),
        FloatType::F16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        FloatType::Bf16 => {
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
                *value = half::bf16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

/// The format's element types and their sizes in bits.
fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Checks what can be checked of one tensor alone.
fn check_entry(raw: &RawEntry) -> std::result::Result<Entry, String> {
    let bits = bits_of(&raw.dtype).ok_or_else(|| format!("dtype {:?} is not one of the format's", raw.dtype))?;
    if raw.shape.len() > RANK_LIMIT {
        return Err(format!("{} dimensions, expected at most {RANK_LIMIT}", raw.shape.len()));
    }
    let [begin, end] = raw.data_offsets;
    let length = end
        .checked_sub(begin)
        .ok_or_else(|| format!("data_offsets [{begin}, {end}] end before they begin"))?;
    let bits = raw
        .shape
        .iter()
        .try_fold(bits, |product, &dimension| product.checked_mul(dimension))
        .ok_or_else(|| format!("shape {:?} overflows", raw.shape))?;
    if !bits.is_multiple_of(8) || bits / 8 != length {
        return Err(format!(
            "shape {:?} of {} takes {} bytes, data_offsets [{begin}, {end}] hold {length}",
            raw.shape,
            raw.dtype,
            bits.div_ceil(8)
        ));
    }
    Ok(Entry {
        dtype: raw.dtype.clone(),
        shape: raw.shape.clone(),
        begin,
        end,
    })
}

/// Checks that the tensors cover the data exactly.
fn check_cover(path: &Path, entries: &HashMap<String, Entry>, data_len: u64) -> Result<()> {
    let mut order: Vec<(&String, &Entry)> = entries.iter().collect();
    order.sort_unstable_by_key(|(name, entry)| (entry.begin, entry.end, name.as_str()));
    let mut covered = 0;
    for (name, entry) in order {
        let problem = match entry.begin.cmp(&covered) {
            std::cmp::Ordering::Less => format!(
                "data_offsets [{}, {}] overlap the tensor before, which ends at {covered}",
                entry.begin, entry.end
            ),
            std::cmp::Ordering::Greater => format!(
                "data_offsets [{}, {}] leave a hole after {covered}",
                entry.begin, entry.end
            ),
            std::cmp::Ordering::Equal if entry.end > data_len => format!(
                "data_offsets [{}, {}] reach past the data, which has {data_len} bytes; the file is cut short",
                entry.begin, entry.end
            ),
            std::cmp::Ordering::Equal => {
                covered = entry.end;
                continue;
            }
        };
        return Err(OwnedError::Tensor {
            path: path.to_owned(),
            tensor: name.clone(),
            problem,
        });
    }
    if covered != data_len {
        return Err(OwnedError::File {
            path: path.to_owned(),
            problem: format!("the tensors hold {covered} bytes of data, the file has {data_len}"),
        });
    }
    Ok(())
}

/// A tensor as the header states it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's tensors; a repeated name is an error, which a plain map would hide.
struct Header(Vec<(String, RawEntry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut names = std::collections::HashSet::new();
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{name:?} stands there twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<HashMap<String, String>>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header(tensors))
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A file with that header text and that many zero bytes of data.
    fn file(header: &str, data: usize) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header.as_bytes()).unwrap();
        file.write_all(&vec![0; data]).unwrap();
        file
    }

    fn refusal(header: &str, data: usize) -> String {
        match SafeTensors::open(file(header, data).path()) {
            Ok(_) => panic!("accepted {header}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_sound_file_in_any_order_is_read() {
        let file = file(
            r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"none":{"dtype":"F32","shape":[0],"data_offsets":[12,12]}}   "#,
            12,
        );
        let mut tensors = SafeTensors::open(file.path()).unwrap();
        assert_eq!(tensors.names(), ["a", "b", "none"]);
        let mut rows = Vec::new();
        tensors
            .read_rows("a", &[1, 2], 0..1, |first, values| rows.push((first, values.to_vec())))
            .unwrap();
        assert_eq!(rows, [(0, vec![0.0, 0.0])]);
    }

    #[test]
    fn each_defect_is_named() {
        let cases: [(&str, usize, &str); 12] = [
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
                8,
                "\"a\" stands there twice",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
                "overlap",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
                12,
                "hole after 0",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
                9,
                "hold 8 bytes of data, the file has 9",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#,
                7,
                "cut short",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
                8,
                "end before they begin",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
                8,
                "overflows",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
                8,
                "takes 12 bytes",
            ),
            (
                r#"{"a":{"dtype":"F12","shape":[2],"data_offsets":[0,8]}}"#,
                8,
                "dtype \"F12\"",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}"#,
                8,
                "invalid value",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}"#,
                4,
                "9 dimensions",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}"#,
                8,
                "unknown field `x`",
            ),
        ];
        for (header, data, words) in cases {
            let message = refusal(header, data);
            assert!(message.contains(words), "{header}: {message}");
        }
    }

    #[test]
    fn wrong_shape_type_and_values_are_named() {
        let file = file(
            r#"{"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"i":{"dtype":"I64","shape":[1],"data_offsets":[8,16]}}"#,
            16,
        );
        let tensors = SafeTensors::open(file.path()).unwrap();
        let message = |name: &str, shape: &[usize]| tensors.require(name, shape).unwrap_err().to_string();
        assert!(message("a", &[1, 2]).ends_with("tensor a: shape [2, 1], expected [1, 2]"));
        assert!(message("i", &[1]).ends_with("tensor i: dtype I64, expected F32, F16 or BF16"));
        assert!(message("z", &[1]).contains("tensor z: missing"));
    }
}
