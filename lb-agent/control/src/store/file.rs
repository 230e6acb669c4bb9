//! The file: a redb database. A commit is on disk when it returns, and whole after any crash.

use std::path::Path;
use std::sync::Arc;

use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::Error;
use super::object::{Change, ChangeKind, Key, Object};
use super::state::State;
use super::transaction::Batch;
use crate::service::Booking;

/// Key to revision and JSON.
const OBJECTS: TableDefinition<'_, &str, (u64, &[u8])> = TableDefinition::new("objects");
/// Columns of a history row: kind of change, time (seconds since 1970), key, revision and JSON before (revision 0:
/// none), JSON after.
type Row<'a> = (u8, u64, &'a str, (u64, &'a [u8]), &'a [u8]);
const HISTORY: TableDefinition<'_, u64, Row<'static>> = TableDefinition::new("history");
/// Booked addresses and ports; the value is empty.
const BOOKINGS: TableDefinition<'_, &str, ()> = TableDefinition::new("bookings");
/// The numbers `revision`, `forgotten` and `format`.
const NUMBERS: TableDefinition<'_, &str, u64> = TableDefinition::new("numbers");
/// Version of the tables; a file with another version is refused.
const FORMAT: u64 = 1;

#[derive(Debug)]
pub(super) struct File {
    database: Database,
}

fn read(error: impl Into<redb::Error>) -> Error {
    Error::Read(error.into().to_string())
}

fn written(error: impl Into<redb::Error>) -> Error {
    Error::Write(error.into().to_string())
}

impl File {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let database = Database::create(path).map_err(|error| {
            let is_open = matches!(error, DatabaseError::DatabaseAlreadyOpen);
            let remedy = if is_open {
                "end the other process, or choose another --data"
            } else {
                "the directory must exist, be writable and have room; a damaged file is replaced from a backup"
            };
            Error::Open { path: path.display().to_string(), cause: error.to_string(), remedy }
        })?;
        let transaction = database.begin_write().map_err(written)?;
        let format = {
            // redb creates a table when it is opened for writing; a reader of a new file would fail without it.
            drop(transaction.open_table(OBJECTS).map_err(written)?);
            drop(transaction.open_table(HISTORY).map_err(written)?);
            drop(transaction.open_table(BOOKINGS).map_err(written)?);
            let mut numbers = transaction.open_table(NUMBERS).map_err(written)?;
            let found = numbers.get("format").map_err(written)?.map(|it| it.value());
            if found.is_none() {
                drop(numbers.insert("format", FORMAT).map_err(written)?);
            }
            found.unwrap_or(FORMAT)
        };
        transaction.commit().map_err(written)?;
        if format == FORMAT {
            return Ok(Self { database });
        }
        let cause = format!("format {format}; this program knows format {FORMAT}");
        let remedy = "run the version that wrote it";
        Err(Error::Open { path: path.display().to_string(), cause, remedy })
    }

    /// Reads the whole file into memory.
    pub(super) fn load(&self) -> Result<State, Error> {
        let transaction = self.database.begin_read().map_err(read)?;
        let numbers = transaction.open_table(NUMBERS).map_err(read)?;
        let number = |name: &str| -> Result<u64, Error> {
            Ok(numbers.get(name).map_err(read)?.map_or(0, |it| it.value()))
        };
        let mut state = State::new(number("revision")?, number("forgotten")?);
        for row in transaction.open_table(OBJECTS).map_err(read)?.iter().map_err(read)? {
            let (word, value) = row.map_err(read)?;
            let (revision, json) = value.value();
            state.insert(Object::kept(key(word.value())?, json, revision));
        }
        for row in transaction.open_table(BOOKINGS).map_err(read)?.iter().map_err(read)? {
            let (word, _) = row.map_err(read)?;
            state.insert_booking(booking(word.value())?);
        }
        for row in transaction.open_table(HISTORY).map_err(read)?.iter().map_err(read)? {
            let (revision, row) = row.map_err(read)?;
            state.remember(Arc::new(change(revision.value(), row.value())?));
        }
        Ok(state)
    }

    /// Writes a batch as one database transaction, and removes history up to revision `forget`.
    pub(super) fn write(&self, batch: &Batch, forget: u64) -> Result<(), Error> {
        let transaction = self.database.begin_write().map_err(written)?;
        {
            let mut objects = transaction.open_table(OBJECTS).map_err(written)?;
            for (key, object) in &batch.objects {
                let word = key.word();
                drop(
                    match object {
                        Some(it) => objects.insert(word.as_str(), (it.revision, &*it.json)),
                        None => objects.remove(word.as_str()),
                    }
                    .map_err(written)?,
                );
            }
            let mut bookings = transaction.open_table(BOOKINGS).map_err(written)?;
            for (booking, is_kept) in &batch.bookings {
                let word = word(*booking);
                drop(
                    if *is_kept {
                        bookings.insert(word.as_str(), ())
                    } else {
                        bookings.remove(word.as_str())
                    }
                    .map_err(written)?,
                );
            }
            let mut history = transaction.open_table(HISTORY).map_err(written)?;
            for change in &batch.changes {
                let key = change.object.key.word();
                let before = change.previous.as_ref();
                let before = before.map_or((0, &[][..]), |it| (it.revision, &*it.json));
                let row =
                    (change.kind as u8, change.at, key.as_str(), before, &*change.object.json);
                drop(history.insert(change.revision, row).map_err(written)?);
            }
            // This is in the same transaction, so that after a crash the history matches the number that says where it
            // begins.
            history.retain_in(..=forget, |_, _| false).map_err(written)?;
            let mut numbers = transaction.open_table(NUMBERS).map_err(written)?;
            if let Some(last) = batch.changes.last() {
                drop(numbers.insert("revision", last.revision).map_err(written)?);
            }
            drop(numbers.insert("forgotten", forget).map_err(written)?);
        }
        transaction.commit().map_err(written)
    }
}

fn key(word: &str) -> Result<Key, Error> {
    Key::of_word(word).ok_or_else(|| Error::Read(format!("{word:?} is not a key")))
}

fn change(revision: u64, (kind, at, word, before, json): Row<'_>) -> Result<Change, Error> {
    let kind = match kind {
        0 => ChangeKind::Added,
        1 => ChangeKind::Modified,
        2 => ChangeKind::Deleted,
        other => return Err(Error::Read(format!("{other} is not a kind of change"))),
    };
    let key = key(word)?;
    let (before_revision, before_json) = before;
    let previous = (before_revision > 0)
        .then(|| Arc::new(Object::kept(key.clone(), before_json, before_revision)));
    let object = Arc::new(Object::kept(key, json, revision));
    Ok(Change { revision, kind, object, previous, at })
}

fn word(booking: Booking) -> String {
    match booking {
        Booking::Address(address) => format!("address/{address}"),
        Booking::Port(port) => format!("port/{port}"),
    }
}

fn booking(word: &str) -> Result<Booking, Error> {
    let parsed = match word.split_once('/') {
        Some(("address", it)) => it.parse().ok().map(Booking::Address),
        Some(("port", it)) => it.parse().ok().map(Booking::Port),
        _ => None,
    };
    parsed.ok_or_else(|| Error::Read(format!("{word:?} is not a booking")))
}
