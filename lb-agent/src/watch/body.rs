//! The body of a response. Silence and the length of what must be held are bounded, the total length is not.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Buf as _, Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::time::timeout;

use super::failure::Failure;

/// The greatest length of a line or object. etcd accepts 1.5 MB by default, and the same object in JSON is a few times
/// as long.
pub(super) const LONGEST: usize = 16 << 20;

/// A body that is read in pieces.
#[derive(Debug)]
pub(super) struct Incoming {
    data: BodyDataStream,
    buffer: BytesMut,
    /// The number of bytes of the buffer that contain no end of a line.
    searched: usize,
}

impl Incoming {
    /// Takes the body of a response.
    pub(super) fn new(body: Body) -> Self {
        Self { data: body.into_data_stream(), buffer: BytesMut::new(), searched: 0 }
    }

    /// Returns the next bytes; `None` at the end.
    pub(super) async fn piece(&mut self, silence: Duration) -> Result<Option<Bytes>, Failure> {
        match timeout(silence, self.data.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Some(Err(error))) => Err(Failure::Broken(crate::chain(&error))),
            Ok(None) => Ok(None),
            Err(_) => Err(Failure::Silent(silence)),
        }
    }

    /// Returns the next line that is not empty; `None` at the end. An incomplete line at the end is dropped.
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn line(&mut self, silence: Duration) -> Result<Option<Bytes>, Failure> {
        loop {
            // Only new bytes are searched: a line of megabytes arrives in thousands of pieces.
            let fresh = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(at) = fresh.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + at).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.searched > LONGEST {
                return Err(Failure::TooLong);
            }
            match self.piece(silence).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    /// Returns the beginning of the body, for a text that must be short.
    pub(super) async fn beginning(&mut self, silence: Duration, most: usize) -> Vec<u8> {
        let mut found = Vec::new();
        while let Ok(Some(bytes)) = self.piece(silence).await {
            found.extend_from_slice(bytes.get(..most - found.len()).unwrap_or(&bytes));
            if found.len() >= most {
                break;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::stream;

    use super::*;

    fn body(pieces: Vec<&'static [u8]>) -> Incoming {
        let pieces = pieces.into_iter().map(|piece| Ok::<_, io::Error>(Bytes::from_static(piece)));
        let body = Body::from_stream(stream::iter(pieces));
        Incoming::new(body)
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_are_cut() {
        let mut body = body(vec![b"a", b"b\n\n \nc", b"\nhalf"]);
        let silence = Duration::from_secs(9);
        let mut lines = Vec::new();
        while let Some(line) = body.line(silence).await.expect("a line") {
            lines.push(line);
        }
        assert_eq!(lines, ["ab", "c"]);
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_given_up() {
        let endless = stream::repeat_with(|| Ok::<_, io::Error>(Bytes::from(vec![b'x'; 1 << 20])));
        let mut body = Incoming::new(Body::from_stream(endless));
        let line = body.line(Duration::from_secs(9)).await;
        assert!(matches!(line, Err(Failure::TooLong)), "{line:?}");
    }
}
