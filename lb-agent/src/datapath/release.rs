//! Releases of Linux, as far as they say what a kernel's verifier takes. A
//! release that is not written as two numbers is no release: loading will tell.

/// Major and minor number.
pub(super) type Release = (u32, u32);

/// Keys of maps may lie in memory that a function is lent, which its verifier knows by its size alone.
pub(super) const KEYS_IN_MEMORY: Release = (6, 2);

/// Reads what uname(2) says, such as `6.12.43+deb13-amd64`.
pub(super) fn parse(release: &str) -> Option<Release> {
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Whether the kernel that runs is known to be older than a release.
pub(super) fn is_before(wanted: Release) -> bool {
    let name = nix::sys::utsname::uname().ok();
    let running = name.and_then(|name| parse(name.release().to_str()?));
    running.is_some_and(|running| running < wanted)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn two_numbers_are_a_release() {
        assert_eq!(parse("6.1.0-50-cloud-amd64"), Some((6, 1)));
        assert_eq!(parse("7.0"), Some((7, 0)));
        assert_eq!(parse("lts"), None);
    }
}
