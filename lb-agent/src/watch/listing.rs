//! Reads lists and watches.

use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kube::Client;
use serde_json::value::RawValue;

use super::body::Incoming;
use super::decode::{self, WatchEvent};
use super::failure::Failure;
use super::follow::{Follow, RequestEnd};
use super::head::ask;
use super::items::Items;
use super::objects::Objects;
use super::request::{Origin, Page};
use super::version::Version;

impl<O: Objects> Follow<O> {
    /// Reads a list in pages. Only a page that fails is requested again, not those before it.
    pub(super) async fn pages(&mut self) -> Result<RequestEnd, Failure> {
        if !self.page.is_later() {
            self.list_begins().await?;
        }
        loop {
            // The first list may come from the server's cache; a later one must not be older than what was seen.
            let any = self.newest.is_unknown();
            let address = self.selected().page(self.newest.bound(), any, &self.next_page());
            let mut body = ask(&self.client, &address).await?;
            let mut items = Items::default();
            while let Some(bytes) = body.piece(self.pace.list_silence).await? {
                for item in items.feed(&bytes)? {
                    let text = String::from_utf8_lossy(&item);
                    // Items have versions of their own; only the version of the list is a position to watch from.
                    drop(self.apply(&text).await?);
                }
            }
            let frame = decode::frame(items.frame())?;
            if let Some(token) = frame.next.filter(|token| !token.is_empty()) {
                // A server with a watch cache gives a list of any age (`resourceVersion=0`) whole, whatever the limit
                // is.
                if any {
                    self.origin = Origin::Store;
                }
                self.page = Page::Later(token);
                continue;
            }
            let version = Version::of(&frame.resource_version).ok_or_else(no_version)?;
            self.listed(&version).await?;
            return Ok(RequestEnd::Well);
        }
    }

    /// Returns the page to request, or the whole list where pages would bypass the server's cache.
    ///
    /// Before Kubernetes 1.34 a server with a cache reads pages with a bound from etcd, and all nodes may request them
    /// at the same time. client-go does the same (`paginatedResult` in its reflector).
    fn next_page(&self) -> Page {
        let is_cached = self.origin == Origin::Cache && self.newest.bound().is_some();
        if is_cached && !self.page.is_later() { Page::Whole } else { self.page.clone() }
    }

    /// Reads a list as the first events of a watch, and continues with that watch.
    pub(super) async fn stream(&mut self) -> Result<RequestEnd, Failure> {
        let address = self.selected().stream(self.newest.bound(), &Self::stream_seconds());
        let mut body = ask(&self.client, &address).await?;
        self.list_begins().await?;
        loop {
            // An old server ignores the option for initial events and just watches: then nothing comes, or only
            // changes.
            let Some(text) = body.line(self.pace.stream_silence).await? else {
                return Err(Failure::Broken("a list does not end".to_owned()));
            };
            match decode::line(&text)? {
                WatchEvent::Applied(object) => drop(self.apply(object.get()).await?),
                WatchEvent::Deleted(who) => {
                    self.unread.remove(&who.namespace, &who.name);
                    let event = self.objects.deleted(&who);
                    self.send(event).await?;
                }
                WatchEvent::Bookmark { version, ends_list: true } => {
                    self.listed(&version.ok_or_else(no_version)?).await?;
                    break;
                }
                WatchEvent::Bookmark { .. } => {}
            }
        }
        self.went_well();
        // The list was the purpose of this request, so the length of the watch after it does not matter.
        self.follow(body).await.map(|_end| RequestEnd::Well)
    }

    /// Watches from a position.
    pub(super) async fn watch(&mut self, from: &Version) -> Result<RequestEnd, Failure> {
        let address = self.selected().watch(from, &Self::seconds());
        let body = ask(&self.client, &address).await?;
        self.follow(body).await
    }

    /// Follows a watch to its end.
    async fn follow(&mut self, body: Incoming) -> Result<RequestEnd, Failure> {
        let began = Instant::now();
        let end = self.lines(body, began).await;
        if began.elapsed() >= self.pace.lasting {
            self.watch_lasted();
        }
        end
    }

    /// Reads the lines of a watch that began at this time.
    async fn lines(&mut self, mut body: Incoming, began: Instant) -> Result<RequestEnd, Failure> {
        let (mut is_good, mut is_silent) = (false, true);
        let mut probe = pin!(self.probe().fuse());
        loop {
            // A watch that was accepted and lasts means that changes arrive, even if there are none.
            let silence = if is_good {
                self.pace.silence
            } else {
                // Until the watch counts as good, silence is measured from its beginning.
                self.pace.lasting.saturating_sub(began.elapsed()).max(Duration::from_millis(1))
            };
            let line = tokio::select! {
                line = body.line(silence) => line,
                went_back = &mut probe => {
                    self.probed(went_back)?;
                    continue;
                }
            };
            let text = match line {
                Ok(Some(text)) => text,
                // A quiet server may not even send bookmarks. Whether it still exists is found by probes of the TCP
                // connection.
                Ok(None) | Err(Failure::Broken(_) | Failure::Silent(_)) if is_good => {
                    // A server whose store was restored drops older events in silence, so a watch without even a
                    // bookmark proves nothing (ADR 0028).
                    self.is_in_doubt |= is_silent || line.is_err();
                    return Ok(RequestEnd::Well);
                }
                Ok(None) => return Ok(RequestEnd::Short),
                Err(Failure::Silent(_)) => {
                    // Only the short wait of a new watch is over: it has lasted long enough to count as good.
                    is_good = true;
                    self.is_seen();
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            is_silent = false;
            if self.happened(&text).await? && !is_good {
                is_good = true;
                self.is_seen();
            }
        }
    }

    /// Requests the current version beside a watch that is in doubt, to find whether the server's state is older than
    /// what was seen.
    ///
    /// Ends only with an answer; the watch does not depend on it.
    fn probe(&self) -> impl Future<Output = bool> + use<O> {
        let seen = self.newest.version().cloned().filter(|_| self.is_in_doubt);
        let (client, address) = (self.client.clone(), self.selected().probe());
        let silence = self.pace.list_silence;
        async move {
            if let Some(seen) = seen
                && let Ok(Some(version)) = version_now(&client, &address, silence).await
            {
                return version.is_older_than(&seen);
            }
            pending().await
        }
    }

    /// Handles the result of the probe.
    const fn probed(&mut self, went_back: bool) -> Result<(), Failure> {
        self.is_in_doubt = false;
        if went_back { Err(Failure::WentBack) } else { Ok(()) }
    }

    fn is_seen(&mut self) {
        self.went_well();
        self.view.fresh(O::KIND);
    }

    /// Handles a line of a watch. True if it is a change that was not known.
    async fn happened(&mut self, text: &[u8]) -> Result<bool, Failure> {
        let version = match decode::line(text)? {
            WatchEvent::Applied(object) => self.apply_raw(object).await?,
            WatchEvent::Deleted(who) => {
                self.unread.remove(&who.namespace, &who.name);
                let event = self.objects.deleted(&who);
                self.send(event).await?;
                Version::of(&who.resource_version)
            }
            WatchEvent::Bookmark { version, .. } => {
                let version = version.ok_or_else(no_version)?;
                // A bookmark is never older than the events before it, unless the store was restored.
                if self.newest.is_newer_than(&version) {
                    return Err(Failure::WentBack);
                }
                self.newest.record(&version);
                self.resume_from = Some(version);
                return Ok(false);
            }
        };
        let Some(version) = version else { return Ok(true) };
        // A server that lags behind sends what is known already. To watch from its position would bring the same again
        // and again.
        if self.newest.is_newer_than(&version) {
            return Ok(false);
        }
        let is_new = self.resume_from.as_ref() != Some(&version);
        self.newest.record(&version);
        self.resume_from = Some(version);
        Ok(is_new)
    }

    async fn apply_raw(&mut self, object: &RawValue) -> Result<Option<Version>, Failure> {
        match self.apply(object.get()).await? {
            Some(version) => Ok(Some(version)),
            // A change of an unknown object: only a list shows the current state.
            None if !self.is_whole => {
                Err(Failure::Garbage("an object with an unreadable name".to_owned()))
            }
            None => Ok(None),
        }
    }

    /// Applies an object, or records that it cannot be read. Returns its version.
    async fn apply(&mut self, text: &str) -> Result<Option<Version>, Failure> {
        let reason = match serde_json::from_str::<O::Object>(text) {
            Ok(object) if !O::metadata(&object).name.is_empty() => {
                let metadata = O::metadata(&object);
                self.unread.remove(&metadata.namespace, &metadata.name);
                let version = Version::of(&metadata.resource_version);
                let event = self.objects.applied(&object);
                self.send(event).await?;
                return Ok(version);
            }
            Ok(_) => None,
            Err(error) => Some(error),
        };
        let Some((who, reason)) = decode::identity(text).zip(reason) else {
            self.is_whole = false;
            tracing::warn!(
                resource = O::KIND.resource(),
                "name of an object is not readable; all known objects of this kind are kept"
            );
            return Ok(None);
        };
        self.unread.add(&who, &reason);
        let event = self.objects.kept(&who);
        self.send(event).await?;
        Ok(Version::of(&who.resource_version))
    }
}

/// Returns the version of what the server's store holds now.
async fn version_now(
    client: &Client,
    address: &str,
    silence: Duration,
) -> Result<Option<Version>, Failure> {
    let mut body = ask(client, address).await?;
    // Only the version of the list counts: its one object may have been written long before.
    let mut items = Items::default();
    while let Some(bytes) = body.piece(silence).await? {
        drop(items.feed(&bytes)?);
    }
    Ok(Version::of(&decode::frame(items.frame())?.resource_version))
}

fn no_version() -> Failure {
    Failure::Garbage("no resource version".to_owned())
}
