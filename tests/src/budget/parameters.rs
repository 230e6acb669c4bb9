//! The number of parameters of each function of the programs, by the types in their object (BTF,
//! `Documentation/bpf/btf.rst`).

use anyhow::{Context as _, Result};
use object::LittleEndian;
use object::read::elf::ElfFile64;
use object::read::{Object as _, ObjectSection as _};

/// The most parameters that a function may have. Linux 7.3 counts those in its type, also one that the compiler has
/// left out, and refuses a call without a sixth.
const MOST: u32 = 5;
/// Kinds of types (`BTF_KIND_*`).
const FUNCTION: u32 = 12;
const PROTOTYPE: u32 = 13;

/// One type: its kind, its number of members, its name, and the type or size that follows.
struct Type {
    kind: u32,
    members: u32,
    name: u32,
    refers_to: u32,
}

/// Returns the functions with more parameters than a kernel may accept.
pub(super) fn too_many(object: &[u8]) -> Result<Vec<String>> {
    let file = ElfFile64::<LittleEndian>::parse(object).context("the object")?;
    let section = file.section_by_name(".BTF").context("types in the object")?;
    in_types(section.data().context("types in the object")?)
}

fn in_types(btf: &[u8]) -> Result<Vec<String>> {
    let [header, types, types_length, names] = [4, 8, 12, 16].map(|at| word(btf, at));
    let (header, types, length, names) = (header?, types?, types_length?, names?);
    let all = all_types(btf, header + types, header + types + length)?;
    let mut found = Vec::new();
    for function in all.iter().filter(|it| it.kind == FUNCTION) {
        // Types are numbered from 1 on: 0 is void.
        let prototype = (function.refers_to as usize).checked_sub(1).and_then(|at| all.get(at));
        let prototype = prototype.filter(|it| it.kind == PROTOTYPE).context("a prototype")?;
        if prototype.members > MOST {
            let name = btf.get((header + names + function.name) as usize..).unwrap_or_default();
            let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
            let name = String::from_utf8_lossy(&name);
            found.push(format!("{name} has {} parameters, over {MOST}", prototype.members));
        }
    }
    Ok(found)
}

fn all_types(btf: &[u8], mut at: u32, end: u32) -> Result<Vec<Type>> {
    let mut all = Vec::new();
    while at < end {
        let (name, info, refers_to) = (word(btf, at)?, word(btf, at + 4)?, word(btf, at + 8)?);
        let (kind, members) = (info >> 24 & 31, info & 0xffff);
        at += 12 + length_behind(kind, members);
        all.push(Type { kind, members, name, refers_to });
    }
    Ok(all)
}

/// Bytes that follow the three words of a type.
const fn length_behind(kind: u32, members: u32) -> u32 {
    match kind {
        // An integer, a variable, a tag of a declaration.
        1 | 14 | 17 => 4,
        // An array.
        3 => 12,
        // A structure, a union, a section, an enumeration of 64 bits.
        4 | 5 | 15 | 19 => 12 * members,
        // An enumeration, a prototype.
        6 | PROTOTYPE => 8 * members,
        _ => 0,
    }
}

fn word(btf: &[u8], at: u32) -> Result<u32> {
    let bytes = btf.get(at as usize..).and_then(|rest| rest.first_chunk());
    Ok(u32::from_le_bytes(*bytes.context("types that end early")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An integer, a prototype with this many parameters, and a function `f`.
    fn types(parameters: u32) -> Vec<u8> {
        let integer = [0, 1 << 24, 4, 32];
        let prototype = [0, PROTOTYPE << 24 | parameters, 1];
        let members = vec![1; 2 * parameters as usize];
        let function = [1, FUNCTION << 24, 2];
        let all = [&integer[..], &prototype, &members, &function].concat();
        let length = 4 * all.len() as u32;
        let header = [0x0001_eb9f, 24, 0, length, length, 3];
        let words = [&header[..], &all].concat();
        let mut btf: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        btf.extend(b"\0f\0");
        btf
    }

    #[test]
    fn sixth_parameter_is_one_too_many() -> Result<()> {
        assert_eq!(in_types(&types(5))?, Vec::<String>::new());
        assert_eq!(in_types(&types(6))?, ["f has 6 parameters, over 5"]);
        assert!(in_types(b"\x9f\xeb\x01\0").is_err());
        Ok(())
    }
}
