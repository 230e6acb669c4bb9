//! Releases of Linux, as far as they determine what the verifier accepts. A release that does not begin with two
//! numbers is unknown: loading the programs will show.

/// Major and minor number.
pub(super) type Release = (u32, u32);

/// First release whose verifier accepts a map key in memory that a function gets by pointer and size.
pub(super) const KEYS_IN_MEMORY: Release = (6, 2);

/// Parses a release as uname(2) returns it, such as `6.12.43+deb13-amd64`.
pub(super) fn parse(release: &str) -> Option<Release> {
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    Some((numbers.next()?, numbers.next()?))
}

/// Reports whether the running kernel is known to be older than a release.
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
