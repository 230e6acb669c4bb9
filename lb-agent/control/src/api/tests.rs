//! The API through its requests and responses, without a socket.
