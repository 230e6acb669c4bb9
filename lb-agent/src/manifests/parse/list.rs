//! Reads a list of objects as a stream: of each item only the fields of its kind.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::object::{KnownKind, Object};

/// A list with items of these kinds.
pub(super) struct List<'a> {
    pub(super) kinds: &'a [Option<KnownKind>],
    pub(super) found: &'a mut Vec<Object>,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                map.next_value_seed(ListItems(&mut self))?;
            } else {
                let _: IgnoredAny = map.next_value()?;
            }
        }
        Ok(())
    }
}

/// Reads as many items as the list has kinds, each as an object of its kind.
struct ListItems<'a, 'b>(&'a mut List<'b>);

impl<'de> DeserializeSeed<'de> for ListItems<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListItems<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for kind in self.0.kinds {
            match kind {
                Some(known) => self.0.found.extend(seq.next_element_seed(*known)?),
                None => drop(seq.next_element::<IgnoredAny>()?),
            }
        }
        // One read beyond the last item lets the parser find the end of the sequence.
        let _: Option<IgnoredAny> = seq.next_element()?;
        Ok(())
    }
}
