//! The model as one JSON object. Owns: names and nesting of the output. Does not own: what is shown
//! (`main`). Memory: a copy of the header. Invariant: nothing is shortened.

use serde_json::{Map, Value as Json, json};
use thalweg_gguf::{Gguf, Value};

use crate::{Args, items, totals, type_name};

/// Files, metadata, tensors and totals, as far as the arguments ask for them.
pub(crate) fn object(model: &Gguf, args: &Args) -> Json {
    let file = |shard| {
        json!({
            "path": model.path(shard).map(|path| path.to_string_lossy()),
            "version": model.version(shard),
            "len_bytes": model.identity(shard).map(|identity| identity.len_bytes),
            "data_start_bytes": model.data_start_bytes(shard),
            "alignment_bytes": model.alignment_bytes(shard),
        })
    };
    let mut object = Map::new();
    object.insert("files".into(), (0..model.n_shards()).map(file).collect());
    if !args.no_metadata {
        let entries = model.metadata().iter().map(|(key, value)| {
            (
                key.to_owned(),
                json!({ "type": type_name(value), "value": value_json(value) }),
            )
        });
        object.insert("metadata".into(), Json::Object(entries.collect()));
    }
    if !args.no_tensors {
        let tensors = model.tensors().iter().map(|t| {
            json!({
                "name": t.name, "type": t.ty.name(), "shape": t.shape(), "file": t.file,
                "offset_bytes": t.offset_bytes, "size_bytes": t.size_bytes,
            })
        });
        object.insert("tensors".into(), tensors.collect());
    }
    let totals = totals(model)
        .into_iter()
        .map(|(ty, [tensors, elements, bytes])| {
            let sums = json!({ "tensors": tensors, "elements": elements, "bytes": bytes });
            (ty.name().to_owned(), sums)
        });
    object.insert("totals".into(), Json::Object(totals.collect()));
    object.into()
}

/// JSON has no NaN and no infinities: those become strings.
fn value_json(value: &Value) -> Json {
    match value {
        Value::F32(v) if v.is_finite() => json!(v),
        Value::F64(v) if v.is_finite() => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(text) => json!(text),
        Value::Array(array) => items(array).map(|item| value_json(&item)).collect(),
        Value::U64(v) => json!(v),
        other => match other.to_string().parse::<i64>() {
            Ok(integer) => json!(integer),
            Err(_) => json!(other.to_string()),
        },
    }
}
