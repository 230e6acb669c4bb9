//! Reads of a directory that fail.

use super::*;

#[test]
fn directory_that_cannot_be_read_is_not_an_empty_one() {
    let place = tempfile::tempdir().unwrap();
    let mut directory = Directory::new(place.path().join("missing"), "node-a");
    let read = directory.read(ChangedFiles::All, &ViewHealth::default());
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::NotFound);
}
