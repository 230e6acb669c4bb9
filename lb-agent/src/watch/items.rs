//! Divides a list into its items while it arrives: only those of the last piece, and an incomplete one, are held.

use super::body::LONGEST;
use super::failure::Failure;

/// The part of a list that has arrived.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// The list without its items.
    frame: Vec<u8>,
    item: Vec<u8>,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The bytes are inside the array of items.
    is_inside: bool,
}

impl Items {
    /// Takes bytes and returns the items that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
        let mut found = Vec::new();
        for byte in bytes {
            found.extend(self.take(*byte));
        }
        if self.frame.len().max(self.item.len()) > LONGEST {
            return Err(Failure::TooLong);
        }
        Ok(found)
    }

    /// Returns the list without its items.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Takes a byte and returns the item that it completes.
    fn take(&mut self, byte: u8) -> Option<Vec<u8>> {
        // Brackets and commas inside a string are text; a quote ends it unless it is escaped.
        if self.in_string {
            (self.in_string, self.is_escaped) =
                (self.is_escaped || byte != b'"', !self.is_escaped && byte == b'\\');
            self.keep(byte);
            return None;
        }
        // Depth 1 is the list, depth 2 is the array of its items.
        let is_between = self.is_inside && self.depth == 2;
        match byte {
            b'{' | b'[' => {
                let begins = !self.is_inside && self.depth == 1 && self.is_at_items();
                self.depth += 1;
                self.keep(byte);
                self.is_inside |= begins && byte == b'[';
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if is_between {
                    self.is_inside = false;
                    self.keep(byte);
                    return self.end();
                }
                self.keep(byte);
            }
            b',' if is_between => return self.end(),
            b' ' | b'\t' | b'\r' | b'\n' if is_between => {}
            _ => {
                self.in_string = byte == b'"';
                self.keep(byte);
            }
        }
        None
    }

    fn end(&mut self) -> Option<Vec<u8>> {
        (!self.item.is_empty()).then(|| std::mem::take(&mut self.item))
    }

    fn keep(&mut self, byte: u8) {
        let kept = if self.is_inside { &mut self.item } else { &mut self.frame };
        kept.push(byte);
    }

    /// Reports whether the next byte begins the value of the list's `items`.
    fn is_at_items(&self) -> bool {
        let before = self.frame.trim_ascii_end().strip_suffix(b":");
        before.is_some_and(|before| before.trim_ascii_end().ends_with(b"\"items\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, size: usize) -> (Vec<String>, String) {
        let mut items = Items::default();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            found.extend(items.feed(piece).expect("items"));
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (found.into_iter().map(text).collect(), text(items.frame().to_vec()))
    }

    #[test]
    fn items_are_cut_out_wherever_pieces_end() {
        let list = r#"{"a":["items",{"items":[1]}],"metadata":{"resourceVersion":"7"}, "items" : [
            {"x":"],\"}","y":[{},[]]}, {"z":{}}, null ],"kind":"List"}"#;
        for size in [1, 2, 7, 1_000] {
            let (items, frame) = cut(list, size);
            assert_eq!(items, [r#"{"x":"],\"}","y":[{},[]]}"#, r#"{"z":{}}"#, "null"], "{size}");
            let frame: serde_json::Value = serde_json::from_str(&frame).expect("a frame");
            assert_eq!(frame["items"], serde_json::json!([]), "{size}");
            assert_eq!(frame["metadata"]["resourceVersion"], "7");
            assert_eq!(frame["a"][1]["items"][0], 1);
        }
    }

    #[test]
    fn a_list_without_items_has_none() {
        for list in [r#"{"items":[]}"#, r#"{"items":null}"#, "{}", "[]", "garbage", "]]]"] {
            assert!(cut(list, 3).0.is_empty(), "{list}");
        }
    }
}
