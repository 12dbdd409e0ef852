// A server that calls itself MySQL 8: go-mysql-server with tables in memory, TLS and one account.
//
// go-mysql-server CERTIFICATE USER PASSWORD; it prints its port, and ends when its standard input does.
package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	sqle "github.com/dolthub/go-mysql-server"
	"github.com/dolthub/go-mysql-server/memory"
	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/go-mysql-server/sql"
	"github.com/dolthub/go-mysql-server/sql/mysql_db"
	"github.com/dolthub/go-mysql-server/sql/plan"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	certificate, user, password := os.Args[1], os.Args[2], os.Args[3]
	provider := memory.NewDBProvider()
	provider.WithOption(memory.NativeIndexProvider(true))
	engine := sqle.NewDefault(provider)

	accounts := engine.Analyzer.Catalog.MySQLDb
	accounts.SetEnabled(true)
	accounts.SetPersister(&mysql_db.NoopPersister{})
	authentication := plan.NewCachingSha2PasswordAuthentication(password)
	hash, err := authentication.AuthString()
	check(err)
	editor := accounts.Editor()
	accounts.AddSuperUser(editor, user, "%", password)
	account := accounts.GetUser(editor, user, "%", false)
	account.Plugin, account.AuthString = authentication.Plugin(), hash
	editor.PutUser(account)
	editor.Close()

	pair, err := tls.LoadX509KeyPair(certificate, certificate)
	check(err)
	config := server.Config{
		Protocol:  "tcp",
		Address:   "127.0.0.1:0",
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
	}
	listening, err := server.NewServer(config, engine, sql.NewContext, memory.NewSessionBuilder(provider), nil)
	check(err)
	fmt.Println(listening.Listener.Addr().(*net.TCPAddr).Port)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	check(listening.Start())
}
