//! Vectors over the socket, and how far two of them lie apart.
//!
//! State: none. Callers: tests that compare with an oracle or with another engine.

use base64::Engine as _;
use serde_json::{Value, json};

use super::client::Client;

/// Numbers of a JSON list.
pub fn floats(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("numbers").iter();
    list.map(|x| x.as_f64().expect("a number")).collect()
}

/// The vectors of a batch as they travel, base64 of little-endian f32, and the whole answer.
pub fn encoded(client: &mut Client, model: &str, items: &[(String, &str)]) -> (Vec<String>, Value) {
    let items: Value = items.iter().map(|(id, text)| json!({"id": id, "text": text})).collect();
    let params = json!({"model": model, "items": items, "encoding": "base64", "role": "none"});
    let answer = client.ok("embed.batch", &params);
    let vectors = answer["vectors"].as_array().expect("vectors").iter();
    let vectors = vectors.map(|vector| {
        vector
            .as_str()
            .unwrap_or_else(|| panic!("no vector: {answer}"))
            .to_owned()
    });
    (vectors.collect(), answer.clone())
}

/// The vectors of a batch, and the whole answer.
pub fn embed(client: &mut Client, model: &str, items: &[(String, &str)]) -> (Vec<Vec<f64>>, Value) {
    let (vectors, answer) = encoded(client, model, items);
    (vectors.iter().map(|vector| decoded(vector)).collect(), answer)
}

/// The numbers of one encoded vector.
pub fn decoded(vector: &str) -> Vec<f64> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(vector)
        .expect("base64");
    let four = |four: &[u8]| f64::from(f32::from_le_bytes(four.try_into().expect("four bytes")));
    bytes.chunks_exact(4).map(four).collect()
}

/// The largest difference between two components; NaN where one is NaN.
pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    // `f64::max` drops NaN, which must not pass.
    differences.fold(
        0.0,
        |worst, difference| if difference <= worst { worst } else { difference },
    )
}

/// The cosine between two vectors.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
