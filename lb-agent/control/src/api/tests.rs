//! The API by its requests and answers, without a socket.
