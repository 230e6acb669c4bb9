//! Patterns for interface names with `*` and `?`, as in shells.

use std::fmt;
use std::str::FromStr;

/// A pattern for interface names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl FromStr for Pattern {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("an interface pattern is empty"),
            text => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// Reports whether the pattern matches a name.
    pub fn matches(&self, name: &str) -> bool {
        matches(self.0.as_bytes(), name.as_bytes())
    }
}

/// Reports whether a pattern matches a whole name. Only the last star is extended, so the time is at most proportional
/// to the product of the two lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(letter) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(wanted) if *wanted == b'?' || wanted == letter => {
                p += 1;
                n += 1;
            }
            Some(_) | None => {
                // The last star takes one more letter, and the rest is compared again.
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                p = at + 1;
                n = taken + 1;
            }
        }
    }
    pattern.iter().skip(p).all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match_as_in_a_shell() {
        let cases = [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth0.100", true),
            ("eth*", "peth0", false),
            ("*", "", true),
            ("veth?", "veth", false),
            ("veth?", "veth7", true),
            ("*a*b", "xaxxbxab", true),
            ("*a*b", "xaxxbxabc", false),
        ];
        for (pattern, name, expected) in cases {
            let pattern: Pattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), expected, "{pattern:?} on {name}");
        }
        assert!("".parse::<Pattern>().is_err());
    }
}
