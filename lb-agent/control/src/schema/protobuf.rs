//! Decodes protobuf bodies, which typed clients and `kubectl create` send, by the field numbers of the table.

use serde_json::{Map, Value};

use super::{Kind, Wire, time, type_of};

/// The magic number at the start of every body (`runtime.Unknown` follows).
const MAGIC: &[u8] = b"k8s\0";

/// The envelope: kind, version, and the bytes of the object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) raw: Vec<u8>,
}

const BROKEN: &str = "the body is not a protobuf message of Kubernetes";

/// Decodes the envelope. Errors: no magic number, or a damaged message.
pub(crate) fn unknown(body: &[u8]) -> Result<Unknown, String> {
    let bytes = body.strip_prefix(MAGIC).ok_or(BROKEN)?;
    let mut found = Unknown::default();
    for (number, token) in tokens(bytes)? {
        match (number, token) {
            (1, Token::Bytes(type_meta)) => {
                for (number, token) in tokens(type_meta)? {
                    match number {
                        1 => found.api_version = token.text()?,
                        2 => found.kind = token.text()?,
                        _ => {}
                    }
                }
            }
            (2, Token::Bytes(raw)) => found.raw = raw.to_vec(),
            _ => {}
        }
    }
    Ok(found)
}

/// Decodes an object of this type.
pub(crate) fn object(type_name: &str, bytes: &[u8]) -> Result<Value, String> {
    let mut fields = Map::new();
    read(type_name, bytes, &mut fields)?;
    Ok(fields.into())
}

enum Token<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Token<'_> {
    fn text(&self) -> Result<String, String> {
        match self {
            Self::Bytes(bytes) => {
                String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
            }
            Self::Number(_) => Err(BROKEN.into()),
        }
    }

    const fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(_) => 0,
        }
    }

    const fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) => &[],
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0_u64;
    // At most ten bytes of seven bits, the lowest first.
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or(BROKEN)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BROKEN.into())
}

fn tokens(mut bytes: &[u8]) -> Result<Vec<(u64, Token<'_>)>, String> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let token = match key & 7 {
            0 => Token::Number(varint(&mut bytes)?),
            2 => {
                let length =
                    usize::try_from(varint(&mut bytes)?).map_err(|error| error.to_string())?;
                let (value, rest) = bytes.split_at_checked(length).ok_or(BROKEN)?;
                bytes = rest;
                Token::Bytes(value)
            }
            // Fixed 64 and 32 bits: no type of these objects has such a field, so it is unknown and skipped.
            kind @ (1 | 5) => {
                let (_, rest) =
                    bytes.split_at_checked(if kind == 1 { 8 } else { 4 }).ok_or(BROKEN)?;
                bytes = rest;
                continue;
            }
            _ => return Err(BROKEN.into()),
        };
        all.push((key >> 3, token));
    }
    Ok(all)
}

fn read(type_name: &str, bytes: &[u8], into: &mut Map<String, Value>) -> Result<(), String> {
    let of = type_of(type_name);
    for (number, token) in tokens(bytes)? {
        match of.wire.get(&number) {
            // An unknown field is skipped, as protobuf requires for newer senders.
            None => {}
            Some(Wire::Inline(name)) => read(name, token.bytes(), into)?,
            Some(Wire::Field(index)) => {
                let Some(field) = of.fields.get(*index) else { continue };
                add(&field.kind, &field.name, &token, into)?;
            }
        }
    }
    Ok(())
}

fn add(
    kind: &Kind,
    name: &str,
    token: &Token<'_>,
    into: &mut Map<String, Value>,
) -> Result<(), String> {
    match kind {
        // A repeated field comes as one token per element.
        Kind::List(element) => {
            let list = into.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(value(element, token)?);
            }
        }
        Kind::Map(element) => {
            let map = into.entry(name).or_insert_with(|| Value::Object(Map::new()));
            let (mut key, mut found) = (String::new(), None);
            // A map is a repeated message with the key as field 1 and the value as field 2.
            for (number, token) in tokens(token.bytes())? {
                match number {
                    1 => key = token.text()?,
                    2 => found = Some(value(element, &token)?),
                    _ => {}
                }
            }
            if let Value::Object(map) = map {
                drop(map.insert(key, found.unwrap_or_else(|| "".into())));
            }
        }
        Kind::String
        | Kind::Bool
        | Kind::Int32
        | Kind::Int64
        | Kind::Bytes
        | Kind::Time
        | Kind::MicroTime
        | Kind::Quantity
        | Kind::IntOrString
        | Kind::Any
        | Kind::Object(_) => drop(into.insert(name.to_owned(), value(kind, token)?)),
    }
    Ok(())
}

fn value(kind: &Kind, token: &Token<'_>) -> Result<Value, String> {
    Ok(match kind {
        Kind::String | Kind::Bytes => token.text()?.into(),
        Kind::Bool => (token.number() != 0).into(),
        Kind::Int32 => (token.number() as i32).into(),
        Kind::Int64 => token.number().cast_signed().into(),
        Kind::Time | Kind::MicroTime => {
            let [seconds, nanos] = numbers(token.bytes())?;
            let is_micro = matches!(kind, Kind::MicroTime);
            let at = time::of_protobuf(seconds, nanos as i32, is_micro);
            // An empty message is a timestamp that was never set.
            at.filter(|_| !token.bytes().is_empty()).map_or(Value::Null, Value::from)
        }
        Kind::Quantity => {
            let first = tokens(token.bytes())?.into_iter().next();
            first.map_or_else(|| Ok("0".into()), |it| it.1.text())?.into()
        }
        Kind::IntOrString => {
            let parts = tokens(token.bytes())?;
            let part = |wanted: u64| parts.iter().find(|it| it.0 == wanted).map(|it| &it.1);
            if part(1).is_some_and(|it| it.number() == 1) {
                part(3).map_or_else(|| Ok(String::new()), Token::text)?.into()
            } else {
                (part(2).map_or(0, Token::number) as i32).into()
            }
        }
        Kind::Object(name) => object(name, token.bytes())?,
        Kind::Any | Kind::List(_) | Kind::Map(_) => Value::Null,
    })
}

fn numbers(bytes: &[u8]) -> Result<[i64; 2], String> {
    let mut found = [0; 2];
    for (number, token) in tokens(bytes)? {
        match (number, &mut found) {
            (1, [first, _]) => *first = token.number().cast_signed(),
            (2, [_, second]) => *second = token.number().cast_signed(),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut all = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        all.extend_from_slice(bytes);
        all
    }

    #[test]
    fn statement_80_an_envelope_with_a_service() {
        let port =
            [field(1, b"http"), vec![3 << 3, 80], field(4, &[1 << 3, 0, 2 << 3, 90])].concat();
        let selector = [field(1, b"app"), field(2, b"web")].concat();
        let spec = [field(1, &port), field(2, &selector)].concat();
        let raw = [field(1, &field(1, b"web")), field(2, &spec)].concat();
        let kind = [field(1, b"v1"), field(2, b"Service")].concat();
        let body = [MAGIC, &field(1, &kind), &field(2, &raw)].concat();
        let found = unknown(&body).unwrap();
        assert_eq!((found.api_version.as_str(), found.kind.as_str()), ("v1", "Service"));
        assert_eq!(
            object("core.Service", &found.raw).unwrap(),
            json!({"metadata": {"name": "web"}, "spec": {
                "ports": [{"name": "http", "port": 80, "targetPort": 90}], "selector": {"app": "web"},
            }})
        );
    }

    #[test]
    fn truncated_messages_are_refused() {
        for body in [&b"k8s"[..], b"{}", b"k8s\0\x0a\x05a", b"k8s\0\x80"] {
            assert!(unknown(body).is_err(), "{body:?}");
        }
        let negative =
            object("core.ServicePort", &[3 << 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(negative.unwrap(), json!({"port": -1}));
    }
}
